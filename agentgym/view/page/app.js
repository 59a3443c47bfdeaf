/* The page of `agentgym view`: its frame, its views, its keys. */
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.module.js";
import { Dialog, Failed, Loading } from "./parts/bits.js";
import { drawWith, exported, get, runPath, useData } from "./lib/data.js";
import { ago, harmless } from "./lib/format.js";
import { usePlace } from "./lib/place.js";
import { useTheme } from "./lib/theme.js";
import { go, link, parseHash, useRoute } from "./lib/url.js";
import { AuditView } from "./views/audit.js";
import { CompareView } from "./views/compare.js";
import { EnvironmentsView, PlayView } from "./views/environments.js";
import { EpisodeView } from "./views/episode.js";
import { EvaluationView } from "./views/evaluation.js";
import { EpisodesView, GroupView } from "./views/episodes.js";
import { LeaderboardView } from "./views/leaderboard.js";
import { RunView } from "./views/run.js";
import { RunsView } from "./views/runs.js";

const PATIENCE_MS = 150;
const ALL = [["leaderboard", "Leaderboard", "l"], ["runs", "Runs", "g"]]; // of all runs
const OVERVIEWS = { leaderboard: LeaderboardView, runs: RunsView };
const TABS = [["run", "Run", "r"], ["episodes", "Episodes", "e"], ["compare", "Compare", "c"], ["audit", "Audit", "a"], ["environments", "Environments", "v"]];
const VIEWS = { run: RunView, evaluation: EvaluationView, episodes: EpisodesView, group: GroupView, episode: EpisodeView, compare: CompareView, audit: AuditView, environments: EnvironmentsView, play: PlayView };
const UNDER = { evaluation: "run", group: "episodes", episode: "episodes", play: "environments" };
const WITHOUT_RUN = ["audit", "environments", "play", "compare"];
const KEYS = [
  ["g r, g e, g c, g a, g v", "Run, Episodes, Compare, Audit, Environments"], ["g l, g g", "Leaderboard, all runs"], ["/", "the first field to type into"], ["t", "light, dark or as the system"],
  ["j, k", "next and previous row of a table"], ["[, ]", "previous and next episode"], ["1 to 5", "colour tokens by log-probability, ratio, advantage, version, mask"], ["m", "messages or every token"],
  ["← → ↑ ↓", "in a turn: read its tokens; in a curve: read its steps"], ["Ctrl Enter", "say it, when playing"], ["?", "this list"],
];

function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}><dl class="help-list">${KEYS.map(([keys, what]) => html`<dt><kbd>${keys}</kbd></dt><dd>${what}</dd>`)}</dl><div class="row"><button onClick=${onClose}>Close</button></div><//>`;
}

function usePageKeys({ run, help, theme }) {
  const before = useRef("");
  useEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const { key } = event;
      const tab = before.current === "g" && [...ALL, ...TABS].find(([, , letter]) => letter === key);
      if (tab) go(tab[0], OVERVIEWS[tab[0]] ? {} : { run });
      else if (key === "?") help();
      else if (key === "t") theme();
      else if (key === "/") document.querySelector("main input, main select")?.focus();
      else {
        before.current = key;
        return;
      }
      before.current = "";
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  });
}

function Top({ runs, run, kind, view, theme, onHelp }) {
  const active = UNDER[view] ?? view;
  return html`<header class="top">
    <a class="brand" href=${link("runs")} title="All runs">agentgym</a>
    <nav class="tabs all" aria-label="All runs">${ALL.map(([name, label]) => html`<a key=${name} href=${link(name)} aria-current=${name === active ? "page" : undefined}>${label}</a>`)}</nav>
    ${runs.length > 0 && html`<select class="run-picker" aria-label="Run" onChange=${(event) => go(["leaderboard", "runs", "evaluation", "group", "episode", "play"].includes(view) ? UNDER[view] ?? "run" : view, { run: event.target.value })}>
      ${runs.map((one) => html`<option key=${one.id} value=${one.id} selected=${one.id === run}>${harmless(one.name)}${one.status === "running" ? " (running)" : ""}</option>`)}</select>`}
    <nav class="tabs" aria-label="Views">${TABS.map(([name, label]) => html`<a key=${name} href=${link(name, { run })} aria-current=${name === active ? "page" : undefined}>${name === "run" && kind === "eval" ? "Evaluation" : label}</a>`)}</nav>
    <div class="end"><button class="quiet" onClick=${theme.next} title="Colours (t)"><span class="visually-hidden">Colours: </span>${{ system: "auto", light: "light", dark: "dark" }[theme.theme]}</button>
      <button class="quiet" onClick=${onHelp} title="Keys (?)">?<span class="visually-hidden"> keys</span></button></div>
  </header>`;
}

function Exported() {
  const { data } = useData("/api");
  if (!data) return null;
  return html`<p class="note exported">Exported ${ago(data.at)}. ${harmless(data.left_out ? `Left out: ${data.left_out}.` : "")}</p>`;
}

function App() {
  const { view, params } = useRoute();
  const theme = useTheme();
  const [help, setHelp] = useState(false);
  const { data, failure } = useData("/api/runs", { again: view in OVERVIEWS ? 1 : 0 });
  const runs = data?.runs ?? [];
  const run = params.run ?? runs[0]?.id;
  const place = `${view} ${run} ${params.key ?? ""}${params.group ?? ""}${params.env ?? ""}${params.report ?? ""}`;
  const main = useRef(null);
  usePageKeys({ run, help: () => setHelp(true), theme: theme.next });
  useEffect(() => {
    const name = view in OVERVIEWS ? "" : runs.find((one) => one.id === run)?.name;
    document.title = [params.key, UNDER[view] ?? view, name, "agentgym view"].filter(Boolean).map(harmless).join(" · ");
  }, [place]);
  usePlace(place, main);
  const kind = runs.find((one) => one.id === run)?.kind;
  const View = view === "run" && kind === "eval" ? EvaluationView : VIEWS[view];
  const Overview = OVERVIEWS[view] ?? RunsView;
  const overview = html`<${Overview} key=${view} runs=${runs} params=${params} />`;
  const shown = view in OVERVIEWS && data ? overview
    : !View ? html`<p class="empty">There is no view “${harmless(view)}”. <a href=${link("run", { run })}>The run</a></p>`
    : run || (data && WITHOUT_RUN.includes(view)) ? html`<${View} key=${view} id=${run} params=${params} dark=${theme.dark} />`
    : data ? overview : !failure && html`<${Loading} what="Reading the runs" />`;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the contents</a>
    <${Top} runs=${runs} run=${run} kind=${kind} view=${view} theme=${theme} onHelp=${() => setHelp(true)} />
    <main id="main" tabindex="-1" ref=${main}>
      ${exported && html`<${Exported} />`}
      <${Failed} failure=${failure} />
      ${shown}
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

/* What the first picture needs: [[path, answer]]. The page's head asked for it already. */
async function firstAnswers() {
  const { view, params } = parseHash(location.hash);
  const runs = await get("/api/runs");
  const run = params.run ?? runs.runs[0]?.id;
  const paths = view === "run" && run ? [runPath(run), runPath(run, "/curves")] : [];
  return [["/api/runs", runs], ...(await Promise.all(paths.map(async (path) => [path, await get(path)])))];
}

/* A server that has to read a large folder first is not waited for; what failed is asked for again, and shown. */
const patience = new Promise((end) => setTimeout(end, PATIENCE_MS, []));
Promise.race([firstAnswers().catch(() => []), patience]).then((found) => drawWith(found, () => render(html`<${App} />`, document.getElementById("app"))));
