/* What `agentgym envs check` and `agentgym sandbox verify` found. */
import { html } from "../vendor/htm-preact.module.js";
import { Failed, Loading } from "../parts/bits.js";
import { Text } from "../parts/text.js";
import { ago, count, harmless, plain } from "../lib/format.js";
import { useData } from "../lib/data.js";
import { link } from "../lib/url.js";

function Cell({ value }) {
  if (typeof value === "number") return html`<td class="num">${Number.isInteger(value) ? value : value.toFixed(3)}</td>`;
  const text = harmless(value === null || value === undefined ? "" : plain(value));
  return html`<td class=${text.length > 60 ? "clip" : ""} title=${text.length > 60 ? text.slice(0, 2000) : undefined}>${text}</td>`;
}

function Report({ id }) {
  const { data, failure } = useData(`/api/reports/${encodeURIComponent(id)}`);
  if (!data || data.id !== id) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the report" />`;
  return html`<section aria-labelledby="report">
    <div class="verdict ${data.ok ? "learning" : "not_learning"}"><h1 id="report">${harmless(data.title)}: ${data.ok ? "nothing was found" : count(data.findings.length, "finding")}</h1><p>${harmless(data.kind)}, ${ago(data.time)}</p></div>
    ${data.findings.length > 0 &&
    html`<h2 class="later">Findings</h2><div class="scroll"><table><thead><tr><th>kind</th><th>where</th><th>what</th></tr></thead>
      <tbody>${data.findings.map((row, i) => html`<tr key=${i}><td><span class="tag bad">${harmless(row.kind.replaceAll("_", " "))}</span></td><td>${harmless(row.where ?? "")}</td><td><div>${harmless(row.text ?? "")}</div>${row.detail && html`<${Text} text=${row.detail} cut=${2000} />`}</td></tr>`)}</tbody></table></div>`}
    ${data.rows.length > 0 &&
    html`<h2 class="later">What was tried</h2><div class="scroll"><table><thead><tr>${data.header.map((name) => html`<th>${harmless(name)}</th>`)}</tr></thead>
      <tbody>${data.rows.map((row, i) => html`<tr key=${i}>${row.map((value) => html`<${Cell} value=${value} />`)}</tr>`)}</tbody></table></div>`}
    ${data.notes.length > 0 && html`<ul class="later">${data.notes.map((note) => html`<li class="soft">${harmless(note)}</li>`)}</ul>`}
    <details class="later"><summary>The whole report</summary><${Text} text=${plain(data.raw)} cut=${20000} /></details>
  </section>`;
}

export function AuditView({ id, params }) {
  const { data, failure } = useData("/api/reports");
  if (!data) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} />`;
  if (!data.reports.length) {
    return html`<h1>Audit</h1><p class="empty prose">No reports are in this folder. <code>agentgym envs check ENV --json > runs/check.json</code> and <code>agentgym sandbox verify --json > runs/verify.json</code> make them.</p>`;
  }
  const chosen = params.report ?? data.reports[0].id;
  return html`<h1>Audit</h1>
    <div class="scroll"><table><caption class="visually-hidden">Reports in the folder</caption><thead><tr><th>report</th><th>of</th><th>result</th><th>made</th></tr></thead>
      <tbody>${data.reports.map((row) => html`<tr key=${row.id} class=${row.id === chosen ? "chosen" : ""}><td><a href=${link("audit", { run: id, report: row.id })} aria-current=${row.id === chosen ? "true" : undefined}>${harmless(row.title)}</a></td><td>${harmless(row.kind)}</td>
        <td>${row.ok ? html`<span class="tag good">clean</span>` : html`<span class="tag bad">${count(row.findings, "finding")}</span>`}</td><td class="soft">${ago(row.time)}</td></tr>`)}</tbody></table></div>
    <${Report} id=${chosen} />`;
}
