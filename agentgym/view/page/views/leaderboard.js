/* The leaderboard: models, checkpoints and API models by benchmark, seeds of one recipe as one row. */
import { html } from "../vendor/htm-preact.module.js";
import { Failed, Loading } from "../parts/bits.js";
import { Listing } from "../parts/listing.js";
import { useData } from "../lib/data.js";
import { ago, duration, figure, fixed, harmless, money, span } from "../lib/format.js";
import { amend, link } from "../lib/url.js";

function measured(key, label, more = {}) {
  return {
    key, label, num: true, falling: true, value: (row) => row[key],
    cell: (row) => html`<b>${fixed(row[key], 3)}</b> <small class="soft nowrap">${span(row[`${key}_low`], row[`${key}_high`])}</small>`, ...more,
  };
}

function Policy({ row }) {
  const [first, ...others] = row.runs;
  const open = (one) => link("evaluation", { run: one.id, step: one.step });
  return html`${others.length ? harmless(row.policy) : html`<a href=${open(first)}>${harmless(row.policy)}</a>`}
    ${others.length > 0 && html`<div class="soft">${row.runs.map((one, at) => html`${at > 0 && ", "}<a href=${open(one)}>${harmless(one.name)}</a>`)}</div>`}
    ${row.tags.map((tag) => html` <span class="tag">${harmless(tag)}</span>`)}${row.note && html`<div class="soft">${harmless(row.note)}</div>`}`;
}

const about = (row, value, text) => (row.estimated && value !== null ? `~${text}` : text);

/* Those in which some row knows something, besides the first ones. */
function columnsOf(rows, { ks, rewards }, metric) {
  const columns = [
    { key: "policy", label: "policy", kind: true, value: (row) => row.policy, cell: (row) => html`<${Policy} row=${row} />` },
    { key: "benchmark", label: "benchmark", wide: true, value: (row) => `${row.benchmark}, version ${row.version}`, cell: (row) => harmless(`${row.benchmark}, version ${row.version}`), needed: new Set(rows.map((row) => `${row.benchmark}@${row.version}`)).size > 1 },
    measured("success", "success", { needed: metric === "success" }),
    measured("reward", "reward", { wide: metric === "success", needed: metric !== "success" }),
    ...ks.map((k) => measured(`pass@${k}`, `pass@${k}`, { wide: true })),
    ...rewards.map((name) => measured(name.includes(".") ? name : `reward.${name}`, harmless(name), { wide: true })),
    { key: "num_runs", label: "runs", wide: true, num: true, falling: true, value: (row) => row.num_runs, needed: rows.some((row) => row.num_runs > 1) },
    { key: "num_episodes", label: "n", title: "counted episodes", num: true, falling: true, value: (row) => row.num_episodes, cell: (row) => figure(row.num_episodes) },
    { key: "num_tasks", label: "tasks", wide: true, num: true, falling: true, value: (row) => row.num_tasks, cell: (row) => figure(row.num_tasks) },
    { key: "left", label: "left out", title: "episodes that broke or could not be counted", wide: true, num: true, falling: true, value: (row) => row.num_broken + row.num_left_out || null, cell: (row) => figure(row.num_broken + row.num_left_out) },
    { key: "cost", label: "cost", title: "of all episodes", wide: true, num: true, falling: true, value: (row) => row.cost, cell: (row) => about(row, row.cost, money(row.cost, row.currency)) },
    { key: "tokens_mean", label: "tokens", title: "sampled, of an episode", wide: true, num: true, falling: true, value: (row) => row.tokens_mean, cell: (row) => about(row, row.tokens_mean, figure(row.tokens_mean, 1)) },
    { key: "seconds_mean", label: "time", title: "of an episode", wide: true, num: true, falling: true, value: (row) => row.seconds_mean, cell: (row) => duration(row.seconds_mean) },
    { key: "time", label: "measured", wide: true, falling: true, value: (row) => row.time, cell: (row) => html`<span class="soft">${ago(row.time)}</span>` },
  ];
  return columns.filter((column) => column.needed ?? rows.some((row) => (column.value(row) ?? null) !== null));
}

function searched(row) {
  return [row.policy, row.model, row.run, row.agent, row.benchmark, row.tags.join(" "), row.note, row.folder].join(" ");
}

function Choices({ params, sections, groups }) {
  const set = (changes) => amend("leaderboard", { ...params, ...changes });
  const chosen = params.benchmark ?? nameOf(sections[0]);
  return html`${sections.length > 1 && html`<label>benchmark <select onChange=${(event) => set({ benchmark: event.target.value })}>
      ${sections.map((one) => html`<option value=${nameOf(one)} selected=${nameOf(one) === chosen}>${harmless(`${one.benchmark}, version ${one.version}`)} (${figure(one.count)})</option>`)}
      <option value="all" selected=${chosen === "all"}>all</option></select></label>`}
    ${groups && html`<label><input type="checkbox" checked=${params.each === "true"} onChange=${(event) => set({ each: event.target.checked ? "true" : "" })} /> each seed</label>`}`;
}

function nameOf(section) {
  return `${section.benchmark}@${section.version}`;
}

export function LeaderboardView({ params }) {
  const { data, failure } = useData("/api/leaderboard");
  if (!data) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the evaluations" />`;
  if (!data.rows.length) return html`<p class="empty">No finished evaluations are here yet. <code>agentgym eval MODEL --env math</code> makes one, <code>agentgym eval RUN --every-checkpoint</code> those of a run.</p>`;
  const sections = data.sections.toSorted((a, b) => b.count - a.count);
  const section = params.benchmark === "all" ? null : sections.find((one) => nameOf(one) === params.benchmark) ?? sections[0];
  const groups = data.rows.some((row) => row.num_runs > 1);
  const rows = data.rows.filter((row) => (params.each === "true" ? row.num_runs === 1 : !row.joined) && (!section || nameOf(row) === nameOf(section)));
  const metric = section?.metric ?? "success";
  const notes = [...(section?.notes ?? ["rows of different benchmarks are no ranking: choose one"]), ...data.notes];
  return html`<h1>Leaderboard</h1>
    <p class="soft">${section ? harmless(`${section.benchmark}, version ${section.version}: `) : ""}${metric} with its 95% interval. Whether two policies differ: <a href=${link("compare")}>compare them by task</a>.</p>
    <${Listing} view="leaderboard" params=${params} columns=${columnsOf(rows, data, metric)} rows=${rows} text=${searched} what="rows" sort=${`-${metric}`} id=${(row) => `${row.folder} ${row.file_step}`}>
      <${Choices} params=${params} sections=${sections} groups=${groups} />
    <//>
    ${notes.map((note) => html`<p class="note">${harmless(note)}</p>`)}`;
}
