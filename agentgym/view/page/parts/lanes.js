/* Groups as bars: from the version at which they began to the step that trained them, dark where tokens were sampled. */
import { html, useMemo, useState } from "../vendor/htm-preact.module.js";
import { count, figure } from "../lib/format.js";
import { go } from "../lib/url.js";
import { useWidth } from "../lib/width.js";

const LEFT = 30, TOP = 16;

/* Each group gets the first lane that is free when it begins, as it took a slot. */
export function inLanes(steps) {
  const bars = steps.flatMap(({ step, groups }) => groups.map((group) => ({ ...group, step, from: group.start, to: Math.max(step, group.start + 1) })));
  bars.sort((a, b) => a.from - b.from || a.group - b.group);
  const ends = [];
  for (const bar of bars) {
    const free = ends.findIndex((end) => end <= bar.from);
    bar.lane = free < 0 ? ends.length : free;
    ends[bar.lane] = bar.to;
  }
  return { bars, lanes: ends.length };
}

function title(bar) {
  const tokens = bar.tokens.map(([version, number]) => `${figure(number)} by version ${version}`).join(", ");
  const end = bar.trained ? `trained in step ${bar.step}, ${count(bar.staleness, "version")} stale` : `skipped in step ${bar.step}: no signal`;
  return `group ${bar.group}: began at version ${bar.start}, ${end}. Tokens: ${tokens || "none"}. ${count(bar.episodes, "episode")}, success ${figure(bar.success, 2)}`;
}

export function Lanes({ run, lanes }) {
  const [said, setSaid] = useState("");
  const { steps, bound } = lanes;
  const [place, width] = useWidth();
  const { bars, lanes: number } = useMemo(() => inLanes(steps), [steps]);
  if (!bars.length) return html`<p class="empty" ref=${place}>No groups are recorded for these steps.</p>`;
  const first = Math.min(...bars.map((bar) => bar.from)), last = Math.max(...bars.map((bar) => bar.to));
  const high = number > 48 ? 3 : number > 24 ? 4 : 6;
  const x = (version) => LEFT + ((version - first) * (width - LEFT - 4)) / Math.max(1, last - first);
  const every = Math.max(1, Math.ceil(((last - first) * 34) / Math.max(60, width)));
  const ticks = Array.from({ length: last - first + 1 }, (_, i) => first + i).filter((v) => (v - first) % every === 0);
  const bottom = TOP + number * (high + 2);
  const stale = bars.filter((bar) => bar.trained && bar.staleness > 0).length;
  const label = `${count(bars.length, "group")} over versions ${first} to ${last}, ${stale} trained on stale tokens, the bound is ${bound ?? "unknown"}.`;
  const find = (event) => bars[Number(event.target.dataset?.bar)];
  return html`<div ref=${place}>
    <div class="legend"><span><i class="s0"></i>tokens of the current version</span><span><i class="s1"></i>1 version stale</span><span><i class="s3"></i>2 or more</span><span><i class="rest"></i>waiting, or skipped without signal</span><span>dashed: a weight update</span></div>
    ${width > 0 && html`<svg width=${width} height=${bottom + 6} role="img" aria-label=${label} onMouseMove=${(event) => setSaid(find(event) ? title(find(event)) : "")}
      onClick=${(event) => { const bar = find(event); if (bar) go("group", { run, source: "train", step: bar.step, group: bar.group }); }}>
      ${ticks.map((v) => html`<line class="update" x1=${x(v)} x2=${x(v)} y1=${TOP - 2} y2=${bottom} /><text x=${x(v)} y="10" text-anchor="middle">${v}</text>`)}
      ${bars.map((bar, i) => {
        const y = TOP + bar.lane * (high + 2);
        const behind = (version) => Math.max(0, bar.step - 1 - version);
        return html`<rect data-bar=${i} class="bar rest" x=${x(bar.from) + 1} y=${y} width=${Math.max(2, x(bar.to) - x(bar.from) - 2)} height=${high} />
          ${bar.trained && bar.tokens.map(([v]) => html`<rect data-bar=${i} class="bar s${[0, 1][behind(v)] ?? 3}" x=${x(v) + 1} y=${y} width=${Math.max(2, x(v + 1) - x(v) - 2)} height=${high} />`)}`;
      })}
    </svg>`}
    <p class="soft" aria-live="off">${said || label}</p>
  </div>`;
}
