/* Text that others wrote: as text, with what would act made visible, and long ones cut until they are asked for. */
import { html, useState } from "../vendor/htm-preact.module.js";
import { count, pieces } from "../lib/format.js";

const CUT = 5000; // characters; a browser lays out more than a few long texts slowly

export function Text({ text, cut = CUT }) {
  const [whole, setWhole] = useState(false);
  const shown = whole ? text : text.slice(0, cut);
  return html`<div class="text" dir="auto" tabindex=${text.length > 600 ? 0 : undefined}>
    ${pieces(shown).map(([piece, acting]) => (acting ? html`<span class="ctl">${piece}</span>` : piece))}
    ${shown.length < text.length &&
    html` <button class="link" onClick=${() => setWhole(true)}>show all ${count(text.length, "character")}</button>`}
  </div>`;
}
