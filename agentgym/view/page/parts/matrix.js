/* The tasks of an evaluation, and beside them those of others that were chosen: a row for each task, a column for each evaluation. */
import { html, useState } from "../vendor/htm-preact.module.js";
import { Failed } from "./bits.js";
import { Listing } from "./listing.js";
import { useAsked } from "../lib/ask.js";
import { useData } from "../lib/data.js";
import { figure, fixed, harmless, span } from "../lib/format.js";
import { getEvaluation, parseSides, sidesText } from "../lib/sides.js";
import { amend, link } from "../lib/url.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const SHADES = 4;
const SHOWN = 50; // tasks

function placeOf({ run, step }) {
  return sidesText([{ run, step }]);
}

/* Every task of any of them: {task_id, difficulty, category, cells: [task or undefined], spread}. */
function joined(evaluations) {
  const rows = new Map();
  evaluations.forEach((one, at) => one.tasks.forEach((task) => {
    const row = rows.get(task.task_id) ?? { task_id: task.task_id, difficulty: task.difficulty, category: task.category, cells: [] };
    row.cells[at] = task;
    rows.set(task.task_id, row);
  }));
  return [...rows.values()].map((row) => {
    const known = row.cells.filter((cell) => typeof cell?.value === "number").map((cell) => cell.value);
    return { ...row, spread: known.length > 1 ? Math.max(...known) - Math.min(...known) : null };
  });
}

function Cell({ evaluations, row, at }) {
  const task = row.cells[at];
  if (!task || task.value === null) return html`<span class="soft">–</span>`;
  const others = evaluations.map(({ run, step }, other) => ({ run, step, task: row.cells[other]?.task })).filter(({ task: there }, other) => other !== at && there !== undefined);
  const to = link("group", { run: evaluations[at].run, source: "eval", step: evaluations[at].step, group: task.task, with: sidesText(others) });
  const shown = task.solved === null ? fixed(task.value) : `${task.solved}/${task.counted}`;
  const shade = task.solved === null ? "" : `share s${Math.round(task.value * SHADES)}`;
  return html`<a class=${shade} href=${to} aria-label=${`${shown}, samples of ${harmless(row.task_id)} in ${LETTERS[at] ?? at}`}>${shown}</a>`;
}

function columnsOf(evaluations, rows) {
  const several = evaluations.length > 1;
  const categories = rows.some((row) => row.category);
  return [
    { key: "task_id", label: "task", kind: true, value: (row) => row.task_id, cell: (row) => harmless(row.task_id) },
    { key: "difficulty", label: "level", num: true, wide: several, value: (row) => row.difficulty, cell: (row) => figure(row.difficulty) },
    categories && { key: "category", label: "category", wide: true, value: (row) => row.category, cell: (row) => harmless(row.category) },
    ...evaluations.map((one, at) => ({ key: `${at}`, label: several ? LETTERS[at] ?? `${at}` : one.all.of === "reward" ? "reward" : "solved", title: harmless(one.summary.policy), num: true, falling: true, value: (row) => row.cells[at]?.value, cell: (row) => html`<${Cell} evaluations=${evaluations} row=${row} at=${at} />` })),
    ...(several ? [{ key: "spread", label: "differs by", num: true, falling: true, value: (row) => row.spread, cell: (row) => fixed(row.spread) }]
      : [{ key: "tokens", label: "tokens", num: true, falling: true, value: (row) => row.cells[0].tokens, cell: (row) => fixed(row.cells[0].tokens, 1) }]),
  ].filter(Boolean);
}

function Legend({ evaluations, remove }) {
  const [first] = evaluations;
  const differs = (one) => one.summary.environment !== first.summary.environment || one.summary.version !== first.summary.version || one.summary.options !== first.summary.options;
  return html`<div class="scroll"><table class="figures"><thead><tr><th>column</th><th>evaluation</th><th class="num">${first.all.of}</th><th>95% interval</th><th class="num hide-narrow">tasks</th><th><span class="visually-hidden">more</span></th></tr></thead>
    <tbody>${evaluations.map((one, at) => html`<tr key=${placeOf(one)}><td><b>${LETTERS[at] ?? at}</b></td><td class="kind"><a href=${link("evaluation", { run: one.run, step: one.step })}>${harmless(one.summary.policy)}</a> <span class="soft">${harmless(one.name)}</span>${differs(one) && html` <span class="tag warn">other version or options</span>`}</td>
      <td class="num">${fixed(one.all.value, 3)}</td><td class="nowrap">${span(one.all.low, one.all.high)}</td><td class="num hide-narrow">${figure(one.all.tasks)}</td>
      <td class="nowrap">${at > 0 && html`<a class="hide-narrow" href=${link("compare", { run: first.run, a: `${first.run}@${first.step}`, b: `${one.run}@${one.step}` })}>compare</a> <button class="quiet" onClick=${() => remove(at - 1)} aria-label=${`remove ${LETTERS[at] ?? at}`}>×</button>`}</td></tr>`)}</tbody></table></div>`;
}

function Chooser({ one, chosen, add }) {
  const { data, failure } = useData("/api/compare/sides");
  const taken = new Set([one, ...chosen].map(placeOf));
  const sides = (data?.sides ?? []).filter((side) => side.environment === one.summary.environment && !taken.has(placeOf(side)));
  if (data && !sides.length) return html`<span class="soft">No other finished evaluation of ${harmless(one.summary.environment)} is here.</span>`;
  return html`<${Failed} failure=${failure} /><label>add <select onChange=${(event) => event.target.value && add(parseSides(event.target.value)[0])}>
    <option value="">${data ? "an evaluation…" : "reading…"}</option>${sides.map((side) => html`<option key=${side.side} value=${placeOf(side)}>${harmless(side.side)} (${figure(side.success ?? side.reward_mean)}, ${figure(side.tasks)} tasks)</option>`)}</select></label>`;
}

export function Matrix({ one, params, fresh }) {
  const chosen = parseSides(params.with);
  const [choosing, setChoosing] = useState(false);
  const { data, failure } = useAsked(() => Promise.all(chosen.map(getEvaluation)), `${params.with} ${fresh}`);
  const evaluations = [one, ...(data ?? [])];
  const set = (sides) => amend("evaluation", { ...params, run: one.run, step: one.step, with: sidesText(sides) });
  const all = joined(evaluations);
  const several = evaluations.length > 1;
  const rows = several && params.differ ? all.filter((row) => row.spread > 0) : all;
  return html`<section aria-labelledby="tasks"><div class="head"><h2 id="tasks">Tasks</h2>
      ${choosing ? html`<${Chooser} one=${one} chosen=${chosen} add=${(side) => set([...chosen, side])} />` : html`<button onClick=${() => setChoosing(true)}>beside other evaluations…</button>`}</div>
    <${Failed} failure=${failure} />
    ${several && html`<${Legend} evaluations=${evaluations} remove=${(at) => set(chosen.filter((_, other) => other !== at))} />`}
    <${Listing} view="evaluation" params=${{ ...params, run: one.run, step: one.step }} columns=${columnsOf(evaluations, all)} rows=${rows} id=${(row) => row.task_id} text=${(row) => `${row.task_id} ${row.category}`} what="tasks" compact=${true} most=${SHOWN} sort=${several ? "-spread" : "0"}>
      ${several && html`<label><input type="checkbox" checked=${Boolean(params.differ)} onChange=${(event) => amend("evaluation", { ...params, run: one.run, step: one.step, differ: event.target.checked ? "1" : "" })} /> only tasks that differ</label>`}
    <//></section>`;
}
