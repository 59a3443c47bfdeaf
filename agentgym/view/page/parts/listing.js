/* A table of everything at once: searched and sorted in the page, with both in the address. */
import { html, useState } from "../vendor/htm-preact.module.js";
import { figure } from "../lib/format.js";
import { byKey } from "../lib/rows.js";
import { amend } from "../lib/url.js";

const SHOWN = 200; // rows

/* columns: [{key, label, value: row => what it is sorted by, cell: row => what is shown (the value without it), num, narrow, falling}].
   num: figures, to the right. wide: not shown on a telephone. kind: a text that may break anywhere. falling: the first click sorts the largest first.
   text: row => what is searched. what: the rows' noun in the plural. compact: as wide as its contents. most: rows that are shown before it is asked for all. children: further filters. The parameters `q` and `sort` are the listing's. */
export function Listing({ view, params, columns, rows, text, what, compact, most = SHOWN, sort: usual = "", id = (row) => row.id, children }) {
  const [whole, setWhole] = useState(false);
  const words = (params.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter((row) => words.every((word) => text(row).toLowerCase().includes(word)));
  const sort = params.sort ?? usual;
  const by = columns.find((column) => column.key === sort.replace(/^-/, ""));
  const sorted = by ? byKey(found, by.value, sort[0] === "-") : found;
  const set = (changes) => amend(view, { ...params, ...changes });
  return html`<div><form class="row filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>search <input type="search" size="16" value=${params.q ?? ""} placeholder="all words of a row" onInput=${(event) => set({ q: event.target.value })} /></label>
      ${children}
      <span class="soft" role="status">${found.length === rows.length ? "" : `${figure(found.length)} of `}${figure(rows.length)} ${what}</span></form>
    <div class="scroll"><table class="listing ${compact ? "figures" : ""}"><caption class="visually-hidden">${what}; the headings sort</caption>
      <thead><tr>${columns.map((column) => html`<${Heading} key=${column.key} column=${column} sort=${sort} onSort=${(next) => set({ sort: next })} />`)}</tr></thead>
      <tbody>${(whole ? sorted : sorted.slice(0, most)).map((row) => html`<tr key=${id(row)}>${columns.map(({ key, value, cell, ...column }) => html`<td key=${key} class=${classes(column)}>${(cell ?? value)(row)}</td>`)}</tr>`)}</tbody></table></div>
    ${!whole && sorted.length > most && html`<button onClick=${() => setWhole(true)}>show all ${figure(sorted.length)}</button>`}
    ${!found.length && html`<p class="empty">Nothing matches. <button class="link" onClick=${() => set({ q: "" })}>Show all</button></p>`}</div>`;
}

function classes({ num, wide, kind }) {
  return [num && "num", wide && "hide-narrow", kind && "kind"].filter(Boolean).join(" ");
}

function Heading({ column, sort, onSort }) {
  const { key, label, title } = column;
  const rising = sort === key, falling = sort === `-${key}`;
  const next = rising ? `-${key}` : falling || !column.falling ? key : `-${key}`;
  return html`<th class=${classes(column)} title=${title} aria-sort=${rising ? "ascending" : falling ? "descending" : undefined}><button type="button" onClick=${() => onSort(next)}>${label}${rising ? " ↑" : falling ? " ↓" : ""}</button></th>`;
}
