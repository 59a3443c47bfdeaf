/* Two runs or checkpoints on the same held-out tasks: what is better, task by task. */
import { html, useMemo, useState } from "../vendor/htm-preact.module.js";
import { Estimate, Failed, Loading, main } from "../parts/bits.js";
import { Chart } from "../parts/chart.js";
import { panelsOf } from "../parts/curves.js";
import { useAsked } from "../lib/ask.js";
import { get, query, runPath, useData } from "../lib/data.js";
import { count, figure, harmless } from "../lib/format.js";
import { go, link } from "../lib/url.js";

const SHOWN = 40; // tasks of a list that are shown before it is asked for more

function Side({ label, name, sides, params, set }) {
  return html`<label>${label} <select aria-label=${`${label} of the comparison`} onChange=${(event) => set({ [name]: event.target.value })}>
    <option value="">choose…</option>
    ${sides.map((side) => html`<option key=${side.side} value=${side.side} selected=${params[name] === side.side}>${harmless(side.side)} (${harmless(side.environment ?? "")}, ${figure(main(side).mean)}, n = ${figure(side.tasks)})</option>`)}
  </select></label>`;
}

/* One interval as a line on a scale of differences around zero. */
function Interval({ estimate }) {
  const reach = Math.max(0.1, Math.abs(estimate.low), Math.abs(estimate.high)) * 1.15;
  const x = (value) => 150 + (value / reach) * 140;
  return html`<svg width="300" height="34" role="img" aria-label=${`The interval reaches from ${figure(estimate.low)} to ${figure(estimate.high)}`}>
    <line class="axis" x1="10" x2="290" y1="12" y2="12" /><line class="update" x1="150" x2="150" y1="2" y2="22" />
    <line class="line thick" x1=${x(estimate.low)} x2=${x(estimate.high)} y1="12" y2="12" /><circle class="bar s0" cx=${x(estimate.mean)} cy="12" r="4" />
    <text x="150" y="32" text-anchor="middle">0</text><text x="10" y="32">−${figure(reach, 2)}</text><text x="290" y="32" text-anchor="end">+${figure(reach, 2)}</text></svg>`;
}

function Attempts({ side, solved, episodes }) {
  const keys = episodes.map((id) => side.keys[id]).filter(Boolean);
  return html`<span>${solved}/${episodes.length}${keys.map((key) => html` <a href=${link("episode", { run: side.run, key })}>${harmless(key)}</a>`)}</span>`;
}

function Tasks({ title, rows, data }) {
  const [all, setAll] = useState(false);
  if (!rows.length) return html`<section><h2>${title}: none</h2></section>`;
  return html`<section><h2>${title}: ${count(rows.length, "task")}</h2>
    <div class="scroll"><table><thead><tr><th>task</th><th>a</th><th>b</th></tr></thead><tbody>
      ${(all ? rows : rows.slice(0, SHOWN)).map((row) => html`<tr key=${row.task_id}><td class="clip" title=${harmless(row.task_id)}>${harmless(row.task_id)}</td>
        <td><${Attempts} side=${data.first} solved=${row.first} episodes=${row.first_episodes} /></td><td><${Attempts} side=${data.second} solved=${row.second} episodes=${row.second_episodes} /></td></tr>`)}
    </tbody></table></div>${!all && rows.length > SHOWN && html`<button onClick=${() => setAll(true)}>show all ${rows.length}</button>`}</section>`;
}

function Differing({ rows, labels }) {
  return html`<section><h2>What differs: ${rows.length || "nothing"}</h2>
    ${rows.length > 0 && html`<div class="scroll"><table><thead><tr><th>field</th>${labels.map((label) => html`<th>${harmless(label)}</th>`)}</tr></thead><tbody>${rows.map((row) => html`<tr key=${row.field}><td><code>${harmless(row.field)}</code></td>${row.values.map((value) => html`<td><code>${harmless(value)}</code></td>`)}</tr>`)}</tbody></table></div>`}</section>`;
}

function Result({ data }) {
  const { first, second, reward } = data;
  const success = data.success ?? reward;
  const side = (label, one) => html`<div><dt>${label}: ${harmless(one.name)}</dt><dd><${Estimate} ...${data.success ? { mean: one.success, low: one.low, high: one.high } : main({ ...one, success: null })} n=${one.num_tasks} /></dd></div>`;
  return html`<div class="verdict ${success.clear ? (success.mean > 0 ? "learning" : "not_learning") : "unclear"}"><h1>${harmless(data.sentence)}</h1>
      <p>${figure(success.better)} tasks better, ${figure(success.worse)} worse, ${figure(success.equal)} equal; ${count(data.num_pairs, "pair")} of episodes${data.num_unpaired ? `, ${figure(data.num_unpaired)} without a partner` : ""}${success.p === undefined || success.p === null ? "" : `; p = ${figure(success.p, 3)}`}${success.smallest ? `; a difference of ${figure(success.smallest)} could be seen` : ""}</p></div>
    <dl class="strip">${side("a", first)}${side("b", second)}<div><dt>${data.success ? "" : "reward, "}b less a, paired by task</dt><dd><${Estimate} ...${success} plus=${true} /></dd></div>
      ${data.success && reward && html`<div><dt>reward, b less a</dt><dd><${Estimate} ...${reward} plus=${true} /></dd></div>`}</dl>
    <${Interval} estimate=${success} />
    ${data.other_rewards && html`<p>The reward is not compared, since other rewards scored the sides: ${harmless(data.other_rewards)}.</p>`}
    ${data.mismatches.length > 0 && html`<ul class="findings" aria-label="What makes the comparison doubtful">${data.mismatches.map((text) => html`<li><span class="tag warn">differs</span>${harmless(text)}</li>`)}</ul>`}
    ${data.success && html`<div class="two"><${Tasks} title="Won by b" rows=${data.won} data=${data} /><${Tasks} title="Lost by b" rows=${data.lost} data=${data} /></div>`}
    <${Differing} rows=${data.differing} labels=${["a", "b"]} />`;
}

/* Several sides, each compared with the first. */
function Several({ data }) {
  const known = data.comparisons.every((one) => one.success);
  const verdict = (one) => html`<span class=${`tag ${one.clear ? (one.mean > 0 ? "good" : "bad") : ""}`}>${one.clear ? (one.mean > 0 ? "better" : "worse") : "not clear"}</span>`;
  return html`<section><h2>${known ? "Success" : "Reward"}: each minus a, ${harmless(data.against)}</h2>
    <div class="scroll"><table><thead><tr><th>side</th><th>own</th><th>difference</th><th>p</th><th></th><th>won</th><th>lost</th><th>equal</th></tr></thead><tbody>
      ${data.comparisons.map((one, at) => {
        const side = data.sides[at + 1], difference = known ? one.success : one.reward;
        return html`<tr key=${at}><td>${String.fromCharCode(98 + at)}: ${harmless(one.side)}${one.mismatches.map((text) => html`<br /><span class="tag warn">differs</span> ${harmless(text)}`)}</td><td>${figure(known ? side.success : side.reward_mean)}</td>
          ${difference ? html`<td><${Estimate} ...${difference} plus=${true} /></td><td>${figure(difference.p, 3)}</td><td>${verdict(difference)}</td><td>${difference.better}</td><td>${difference.worse}</td><td>${difference.equal}</td>` : html`<td colspan="6">other rewards: ${harmless(one.other_rewards)}</td>`}</tr>`;
      })}
    </tbody></table></div>
    <p class="soft">The intervals hold together at 95%, and p is adjusted by Holm's method: the chance of a single false verdict in the table is at most 5%. Choose two sides to read their tasks.</p></section>
    <${Differing} rows=${data.differing} labels=${data.sides.map((one) => one.name)} />`;
}

/* The curves of two runs over each other. */
function Overlay({ a, b, dark }) {
  const first = useData(runPath(a, "/curves")), second = useData(runPath(b, "/curves"));
  const panels = useMemo(() => {
    if (!first.data || !second.data) return [];
    const other = new Map(second.data.curves.map((curve) => [curve.key, curve]));
    return panelsOf(first.data.curves.map((curve) => ({ ...curve }))).flatMap((panel) =>
      panel.lines.filter((line) => line.steps.length && other.get(line.key)?.steps.length).map((line) => ({
        ...panel, key: line.key, title: line.label, wide: false,
        lines: [{ ...line, label: "a", tone: 0 }, { ...other.get(line.key), label: "b", tone: 1 }],
      })),
    );
  }, [first.data, second.data]);
  if (!panels.length) return null;
  return html`<section><div class="head"><h2>Curves of both</h2><span class="legend"><span><i class="s0"></i>a: ${harmless(a)}</span><span><i class="s1"></i>b: ${harmless(b)}</span></span></div>
    <div class="curves">${panels.map((panel) => html`<${Chart} ...${panel} dark=${dark} />`)}</div></section>`;
}

export function CompareView({ id, params, dark }) {
  const { data: known, failure: none } = useData("/api/compare/sides");
  const sides = known?.sides ?? [];
  const own = sides.filter((side) => side.run === id).sort((x, y) => x.step - y.step);
  const { a = own.length > 1 ? own[0].side : undefined, b = own.length > 1 ? own.at(-1).side : undefined } = params;
  const also = (params.also ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  const set = ({ also: more = also, ...changes }) => go("compare", { run: id, a, b, also: more.map(encodeURIComponent).join(",") || undefined, ...changes });
  const chosen = { a, b };
  const left = sides.filter((side) => ![a, b, ...also].includes(side.side));
  const { data, failure, loading } = useAsked(async () => (a && b ? get(`/api/compare${query({ a, b, also })}`) : null), `${a} ${b} ${also}`);
  const runs = [a, b].map((side) => side?.replace(/@\d+$/, ""));
  return html`<div class="row controls"><${Side} label="a" name="a" sides=${sides} params=${chosen} set=${set} /><button onClick=${() => set({ a: b, b: a })} disabled=${!a || !b}>swap</button><${Side} label="b" name="b" sides=${sides} params=${chosen} set=${set} />
      ${also.map((side) => html`<button title="leave it out" onClick=${() => set({ also: also.filter((one) => one !== side) })}>${harmless(side)} ×</button>`)}
      ${a && b && left.length > 0 && html`<${Side} label="and" name="also" sides=${left} params=${{}} set=${({ also: one }) => one && set({ also: [...also, one] })} />`}</div>
    <${Failed} failure=${none ?? failure} />
    ${known && sides.length < 2 && html`<p class="empty">A comparison needs two finished evaluations; ${sides.length} ${sides.length === 1 ? "is" : "are"} here. <code>agentgym eval RUN</code> makes one.</p>`}
    ${loading && a && b && html`<${Loading} what="Comparing" />`}
    ${data && (data.sides ? html`<${Several} data=${data} />` : html`<${Result} data=${data} />`)}
    ${data && !data.sides && runs[0] !== runs[1] && html`<${Overlay} a=${runs[0]} b=${runs[1]} dark=${dark} />`}`;
}
