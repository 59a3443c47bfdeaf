/* The table of a run's episodes, and a group's members beside each other. */
import { html } from "../vendor/htm-preact.module.js";
import { Failed, Loading, Outcome } from "../parts/bits.js";
import { Text } from "../parts/text.js";
import { useAsked } from "../lib/ask.js";
import { episodesPage, groupOf } from "../lib/episodes.js";
import { count, duration, figure, fixed, harmless, money, signed } from "../lib/format.js";
import { parseSides, sidesText } from "../lib/sides.js";
import { amend, go, link } from "../lib/url.js";

const LIMIT = 50;
const KEPT = ["source", "step", "step_to", "group", "task", "outcome", "stop", "success", "trained", "difficulty", "category", "error", "reward_min", "reward_max", "cost_min", "stale_min", "tool_errors", "text", "sort", "offset"];

const COLUMNS = [
  ["step", "step", true], ["group", "group", true], ["task_id", "task", false], ["difficulty", "level", true],
  ["outcome", "outcome", false], ["reward", "reward", true], ["advantage", "advantage", true],
];
const OF_TOKENS = ["advantage", "staleness"]; // what a policy behind a server has not
const SERVED = [["asked_tokens", "prompt tokens", true], ["cached_tokens", "cached", true], ["cost", "cost", true]];
const LATER = [["turns", "turns", true], ["tokens", "tokens", true], ["staleness", "stale, versions", true], ["tool_errors", "tool errors", true], ["stop", "ended by", false], ["seconds", "time", true]];

function Heading({ column, label, numeric, sort, onSort }) {
  const rising = sort === column, falling = sort === `-${column}`;
  const sorted = rising ? "ascending" : falling ? "descending" : undefined;
  return html`<th class=${numeric ? "num" : ""} aria-sort=${sorted}><button type="button" onClick=${() => onSort(falling ? column : `-${column}`)}>${label}${rising ? " ↑" : falling ? " ↓" : ""}</button></th>`;
}

function Row({ run, row, names, served, currency }) {
  const to = link("episode", { run, key: row.key });
  return html`<tr data-row>
    <td class="nowrap"><a href=${to}>${harmless(row.key)}</a></td>
    <td class="num">${row.step}</td>
    <td class="num"><a href=${link("group", { run, source: row.source, step: row.step, group: row.group })} aria-label=${`group ${row.group} side by side`}>${row.group}</a></td>
    <td class="clip" title=${harmless(row.task_id)}>${harmless(row.task_id)}</td><td class="num">${figure(row.difficulty)}</td>
    <td><${Outcome} row=${row} />${row.error && html` <span class="soft">${harmless(row.error)}</span>`}</td>
    <td class="num">${fixed(row.reward)}</td>${!served && html`<td class="num">${signed(row.advantage, 2)}</td>`}
    ${names.map((name) => html`<td class="num">${fixed(row.rewards?.[name])}</td>`)}
    ${served && html`<td class="num">${counted(row, "asked_tokens")}</td><td class="num">${counted(row, "cached_tokens")}</td><td class="num nowrap">${money(row.cost, currency)}</td>`}
    <td class="num">${figure(row.turns)}</td><td class="num">${counted(row, "tokens")}</td>${!served && html`<td class="num">${figure(row.staleness)}</td>`}<td class="num">${figure(row.tool_errors)}</td>
    <td>${harmless(row.stop ?? "")}</td><td class="num">${duration(row.seconds)}</td>
  </tr>`;
}

/* A number of tokens, marked where the server did not count them. */
function counted(row, name) {
  return `${row.estimated && row[name] !== null ? "~" : ""}${figure(row[name])}`;
}

function choices(facet) {
  return Object.entries(facet ?? {}).map(([value, number]) => [value, `${value.replaceAll("_", " ")} (${figure(number)})`]);
}

function Filter({ label, name, options, params, set }) {
  return html`<label>${label} <select value=${params[name] ?? ""} onChange=${(event) => set({ [name]: event.target.value })}>
    <option value="">any</option>${options.map(([value, text]) => html`<option value=${value} selected=${(params[name] ?? "") === value}>${harmless(text)}</option>`)}
  </select></label>`;
}

const MORE = ["outcome", "stop", "difficulty", "category", "trained", "error", "reward_min", "reward_max", "cost_min", "tool_errors"];

function Filters({ params, facets, served, set }) {
  const typed = (name, width) => ({ value: params[name] ?? "", size: width, onInput: (event) => set({ [name]: event.target.value }, true) });
  return html`<form class="row filters" role="search" aria-label="Filter the episodes" onSubmit=${(event) => event.preventDefault()}>
    <${Filter} label="from" name="source" params=${params} set=${set} options=${[["train", "training"], ["eval", "evaluations"]]} />
    <label>task <input type="search" placeholder="part of its id" ...${typed("task", 14)} /></label>
    <label>steps <input type="text" inputmode="numeric" ...${typed("step", 4)} /></label><label>to <input type="text" inputmode="numeric" ...${typed("step_to", 4)} /></label>
    <${Filter} label="success" name="success" params=${params} set=${set} options=${[["true", "yes"], ["false", "no"]]} />
    <details class="more" open=${MORE.some((name) => params[name])}><summary>more filters</summary><div class="row">
    <${Filter} label="outcome" name="outcome" params=${params} set=${set} options=${choices(facets?.outcome)} />
    <${Filter} label="ended by" name="stop" params=${params} set=${set} options=${choices(facets?.stop)} />
    <${Filter} label="level" name="difficulty" params=${params} set=${set} options=${choices(facets?.difficulty)} />
    <${Filter} label="category" name="category" params=${params} set=${set} options=${choices(facets?.category)} />
    <${Filter} label="trained" name="trained" params=${params} set=${set} options=${[["true", "yes"], ["false", "no"]]} />
    <${Filter} label="error" name="error" params=${params} set=${set} options=${[["any", "infrastructure"]]} />
    <label>reward from <input type="text" inputmode="decimal" ...${typed("reward_min", 4)} /></label><label>to <input type="text" inputmode="decimal" ...${typed("reward_max", 4)} /></label>
    ${served && html`<label>cost from <input type="text" inputmode="decimal" ...${typed("cost_min", 6)} /></label>`}
    <label><input type="checkbox" checked=${params.tool_errors === "true"} onChange=${(event) => set({ tool_errors: event.target.checked ? "true" : "" })} /> tool errors</label></div></details>
    <button type="button" class="quiet" onClick=${() => set(null)}>clear</button>
  </form>`;
}

/* j and k move from row to row, as the arrow keys do between the links of a table. */
function moveRows(event) {
  const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest("tr[data-row]");
  if (!by || !row) return;
  const next = by > 0 ? row.nextElementSibling : row.previousElementSibling;
  event.preventDefault();
  next?.querySelector("a")?.focus();
}

export function EpisodesView({ id, params }) {
  const asked = { sort: "-step", source: "all", ...Object.fromEntries(KEPT.filter((key) => params[key]).map((key) => [key, params[key]])) };
  const offset = Number(params.offset) || 0;
  const { data, failure, loading } = useAsked(() => episodesPage(id, { ...asked, offset, limit: LIMIT }), JSON.stringify([id, asked]));
  const set = (changes, typing = false) => (typing ? amend : go)("episodes", changes === null ? { run: id } : { ...params, offset: "", ...changes });
  const names = data?.reward_names ?? [];
  const columns = [...COLUMNS, ...names.map((name) => [`rewards.${name}`, harmless(name), true]), ...(data?.served ? SERVED : []), ...LATER];
  const shown = columns.filter(([column]) => !data?.served || !OF_TOKENS.includes(column));
  return html`<h1>Episodes</h1>
    <${Filters} params=${params} facets=${data?.facets} served=${data?.served} set=${set} />
    <${Failed} failure=${failure} />
    ${!data && !failure && html`<${Loading} what="Reading the episodes" />`}
    ${data &&
    html`<div class="row spread pages"><p role="status">${figure(data.matched)} of ${count(data.total, "episode")}${loading ? ", reading…" : ""}</p><${Pages} data=${data} set=${set} /></div>
      <div class="scroll" onKeyDown=${moveRows}><table>
        <caption class="visually-hidden">Episodes; the headings sort</caption>
        <thead><tr><th>episode</th>${shown.map(([column, label, numeric]) => html`<${Heading} key=${column} column=${column} label=${label} numeric=${numeric} sort=${asked.sort} onSort=${(sort) => set({ sort })} />`)}</tr></thead>
        <tbody>${data.rows.map((row) => html`<${Row} key=${row.key} run=${id} row=${row} names=${names} served=${data.served} currency=${data.currency} />`)}</tbody>
      </table></div>
      ${data.matched === 0 && html`<p class="empty">No episode matches. <button class="link" onClick=${() => set(null)}>Show all</button></p>`}
      ${data.left_out && html`<p class="note">${harmless(data.left_out)}</p>`}`}`;
}

function Pages({ data, set }) {
  const { offset, limit, matched } = data;
  const to = Math.min(matched, offset + limit);
  return html`<nav class="row" aria-label="Pages"><button disabled=${offset === 0} onClick=${() => set({ offset: Math.max(0, offset - limit) || "" })}>previous</button>
    <span class="soft">${matched ? `${figure(offset + 1)} to ${figure(to)}` : "none"}</span><button disabled=${to >= matched} onClick=${() => set({ offset: offset + limit })}>next</button></nav>`;
}

/* The members of a group beside each other. measured: they are of an evaluation, and have no advantage. */
function Members({ run, rows, finals, measured }) {
  return html`<div class="side-by-side">${rows.map(
    (row, i) => html`<article key=${row.key} class=${row.success ? "won" : row.success === null ? "" : "lost"}>
      <h3 class="row"><a href=${link("episode", { run, key: row.key })}>${harmless(row.key)}</a><${Outcome} row=${row} /></h3>
      <p class="soft">reward ${fixed(row.reward)}${measured ? "" : `, advantage ${signed(row.advantage, 2)}`}, ${count(row.tokens, "token")}, ${count(row.turns, "turn")}${i > 0 ? html`, <a href=${link("episode", { run, key: row.key, diff: rows[0].key })}>diff to the first</a>` : ""}</p>
      <${Text} text=${finals[row.key] ?? ""} cut=${4000} />
    </article>`,
  )}</div>`;
}

/* The samples of the same task in another evaluation. */
function OtherSide({ side }) {
  const { data, failure } = useAsked(() => groupOf(side.run, "eval", side.step, side.task), sidesText([side]));
  return html`<section><h2><a href=${link("evaluation", { run: side.run, step: side.step })}>${harmless(side.run)} step ${side.step}</a>${data ? `: ${wonOf(data.rows)}` : ""}</h2>
    <${Failed} failure=${failure} />${data && html`<${Members} run=${side.run} rows=${data.rows} finals=${data.finals} measured=${true} />`}</section>`;
}

function wonOf(rows) {
  const episodes = count(rows.length, "episode");
  return rows.some((row) => row.success === null) ? episodes : `${rows.filter((row) => row.success).length} of ${episodes} succeeded`;
}

export function GroupView({ id, params }) {
  const { source = "train", step, group } = params;
  const { data, failure } = useAsked(() => groupOf(id, source, step, group), JSON.stringify([id, source, step, group]));
  if (!data) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the group" />`;
  const neighbour = (number, text) => number !== null && number !== undefined && html`<a href=${link("group", { run: id, source, step, group: number })}>${text}</a>`;
  const measured = source === "eval", noun = measured ? "task" : "group";
  return html`<h1>${measured ? harmless(data.task_id) : `Group ${data.group}, step ${data.step}`}: ${wonOf(data.rows)}</h1>
    <p class="row soft"><span>${measured ? html`of <a href=${link("evaluation", { run: id, step })}>the evaluation of step ${data.step}</a>` : harmless(data.task_id)}</span>${neighbour(data.neighbours.previous, `previous ${noun}`)}${neighbour(data.neighbours.next, `next ${noun}`)}</p>
    <section aria-labelledby="prompt"><h2 id="prompt">Prompt</h2>${data.prompt.map((message, i) => html`<div class="message" key=${i}><header><b>${message.role}</b></header><${Text} text=${message.content} /></div>`)}</section>
    <section aria-labelledby="members"><h2 id="members">Side by side</h2>
      <${Members} run=${id} rows=${data.rows} finals=${data.finals} measured=${measured} /></section>
    ${parseSides(params.with).map((side) => html`<${OtherSide} key=${sidesText([side])} side=${side} />`)}`;
}
