/* What one member of a group said otherwise than another. */
import { html } from "../vendor/htm-preact.module.js";
import { Failed, Loading } from "./bits.js";
import { harmless } from "../lib/format.js";
import { getOnce, query, runPath } from "../lib/data.js";
import { useAsked } from "../lib/ask.js";

function Part({ part: [kind, text] }) {
  const shown = harmless(text);
  if (kind === "-") return html`<del>${shown}</del>`;
  if (kind === "+") return html`<ins>${shown}</ins>`;
  return html`<span>${shown}</span>`;
}

export function Diff({ id, a, b }) {
  const { data, failure } = useAsked(() => getOnce(runPath(id, `/diff${query({ a, b })}`)), `${id} ${a} ${b}`);
  if (!data) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Comparing" />`;
  const changed = data.messages.filter((message) => !message.same);
  return html`<section aria-label=${`Differences to ${a}`} class="diff">
    <div class="head"><h2>Against ${a}</h2><span class="soft"><del>only there</del> <ins>only here</ins>${data.same_task ? "" : "; another task"}</span></div>
    ${!changed.length && html`<p class="soft">Both said the same.</p>`}
    ${changed.map((message) => html`<div class="message ${message.role}" key=${message.at}><header><b>${harmless(message.role)}</b><span>message ${message.at + 1}</span></header><div class="text" dir="auto">${message.parts.map((part, i) => html`<${Part} key=${i} part=${part} />`)}</div></div>`)}
    ${data.cut && html`<p class="note">Only the beginning is compared: the texts are long.</p>`}
  </section>`;
}
