/* One episode: what was said, token by token, and what came of it. */
import { html, useEffect, useMemo, useState } from "../vendor/htm-preact.module.js";
import { Facts, Failed, Loading, Outcome, Segmented } from "../parts/bits.js";
import { Conversation, EveryToken } from "../parts/conversation.js";
import { Diff } from "../parts/diff.js";
import { Text } from "../parts/text.js";
import { useAsked } from "../lib/ask.js";
import { getOnce, runPath } from "../lib/data.js";
import { groupOf } from "../lib/episodes.js";
import { count, duration, figure, fixed, harmless, money, plain, signed } from "../lib/format.js";
import { KINDS, describe, scaleOf } from "../lib/shades.js";
import { amend, go, link } from "../lib/url.js";

function Scale({ kind, versions, oldest }) {
  return html`<span class="scale by-${kind}"><span>${KINDS.find(([key]) => key === kind)[2]}:</span>
    ${scaleOf(kind, versions, oldest).map(([shade, words]) => html`<span key=${words}><i class="swatch edged ${shade}"></i>${words}</span>`)}</span>`;
}

function Inspect({ tokens, at }) {
  const text = at === null ? "" : tokens.text ? harmless(tokens.text[at]).replaceAll("\n", "↵") : `⟨${tokens.id[at]}⟩`;
  return html`<div class="inspect" role="status" aria-live="polite" aria-label="The token that is read">
    ${at === null
      ? html`<p class="soft">Point at a token, or focus a turn and move with the arrow keys, to read its id, text and figures.</p>`
      : html`<dl><div><dt>text</dt><dd><bdi>“${text}”</bdi></dd></div>${describe(tokens, at).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
  </div>`;
}

function Members({ id, episode, group, diff }) {
  const rows = group?.rows ?? [];
  if (rows.length < 2) return null;
  return html`<div><h2>Group ${episode.group}</h2>
    <p class="soft"><a href=${link("group", { run: id, source: episode.source, step: episode.step, group: episode.group })}>side by side</a>, n = ${rows.length} episodes</p>
    <div class="members">${rows.map(
      (row) => html`<a key=${row.key} href=${link("episode", { run: id, key: row.key })} aria-current=${row.key === episode.key ? "page" : undefined}>
        <span class=${row.success ? "good" : "soft"} title=${row.success ? "success" : row.success === null ? "success unknown" : "no success"}>${row.success ? "✓" : row.success === null ? "" : "·"}</span><span>${row.n}</span><span>${fixed(row.reward)}</span><span class="soft">${signed(row.advantage, 2)}</span></a>`,
    )}</div>
    <label class="below">diff against <select onChange=${(event) => go("episode", { run: id, key: episode.key, diff: event.target.value })}>
      <option value="">none</option>${rows.filter((row) => row.key !== episode.key).map((row) => html`<option value=${row.key} selected=${row.key === diff}>${row.key}${row.success ? " (success)" : ""}</option>`)}</select></label></div>`;
}

function clipped(text) {
  return harmless(text.length > 90 ? `${text.slice(0, 90)}…` : text);
}

/* Of a policy behind a server what it counted; of any other the tokens, and how they were trained on. */
function tokensOf(episode) {
  const { usage, oldest, newest } = episode;
  if (usage) {
    const about = usage.estimated ? "~" : "";
    return [["turns", figure(usage.turns)], ["prompt tokens", `${about}${figure(usage.asked)}, ${figure(usage.cached)} cached`], ["tokens", `${about}${figure(usage.answered)}`], ["cost", money(usage.cost, usage.currency)]];
  }
  const sampled = episode.turns.reduce((sum, turn) => sum + turn.end - turn.sampled, 0);
  return [
    ["advantage", signed(episode.advantage)], ["trained", episode.trained ? "yes" : "no"], ["tokens", `${figure(episode.tokens.count)}, ${figure(sampled)} sampled`],
    ["versions", oldest === newest ? figure(oldest) : `${figure(oldest)} to ${figure(newest)}`], ["staleness", count(episode.staleness ?? 0, "version")],
  ];
}

function Aside({ id, episode, group, diff }) {
  const timing = Object.entries(episode.timing_s ?? {}).map(([name, value]) => [name.replace(/_s$/, "").replaceAll("_", " "), duration(value)]);
  return html`<aside aria-label="About this episode">
    <div><h2>Rewards</h2><table><thead><tr><th>name</th><th class="num">value</th><th class="num">weight</th></tr></thead>
      <tbody>${episode.rewards.map((row) => html`<tr key=${row.name}><td>${harmless(row.name)}</td><td class="num">${row.value === null ? "not scored" : fixed(row.value, 3)}</td><td class="num">${figure(row.weight)}</td></tr>`)}
      <tr><td><b>reward</b></td><td class="num"><b>${fixed(episode.reward, 3)}</b></td><td></td></tr></tbody></table>
      ${episode.turn_rewards?.length > 0 && html`<p class="soft">by turn: ${episode.turn_rewards.map((value) => figure(value)).join(", ")}</p>`}</div>
    <${Members} id=${id} episode=${episode} group=${group} diff=${diff} />
    <div><h2>Facts</h2><${Facts} pairs=${[
      ["task", clipped(episode.task.task_id)], ["split", episode.task.split], ["level", figure(episode.task.difficulty)], ["seed", String(episode.seed)],
      ["ended by", episode.stop], ...tokensOf(episode), ["retries", episode.retries ? figure(episode.retries) : ""],
      ["asked for, not honoured", Object.entries(episode.agent?.not_honoured ?? {}).map(([name, times]) => `${figure(times)} ${harmless(name)}`).join(", ")], ...timing,
    ]} /></div>
    ${episode.task.answer !== null && episode.task.answer !== undefined && html`<details><summary>The task's answer</summary><${Text} text=${plain(episode.task.answer)} cut=${4000} /></details>`}
    ${Object.keys(episode.info ?? {}).length > 0 && html`<details><summary>What the environment recorded</summary><${Text} text=${plain(episode.info)} cut=${4000} /></details>`}
    ${episode.agent && html`<details open><summary>The agent's process</summary><${Text} text=${plain(episode.agent)} cut=${8000} /></details>`}
  </aside>`;
}

function useEpisodeKeys(actions) {
  useEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (actions[event.key]) {
        event.preventDefault();
        actions[event.key]();
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  });
}

export function EpisodeView({ id, params }) {
  const { key, diff } = params;
  const { data: episode, failure } = useAsked(() => getOnce(runPath(id, `/episodes/${encodeURIComponent(key)}`)), `${id} ${key}`);
  const groupKey = episode ? `${id} ${episode.source} ${episode.step} ${episode.group}` : "";
  const { data: group } = useAsked(async () => (episode ? groupOf(id, episode.source, episode.step, episode.group) : null), groupKey);
  const [at, setAt] = useState(null);
  useEffect(() => setAt(null), [key]);
  const kind = KINDS.some(([name]) => name === params.by) ? params.by : "logprob";
  const every = params.show ? params.show === "tokens" : (episode?.branches.length ?? 1) > 1; // only tokens show a branch whole
  const set = (changes) => amend("episode", { ...params, ...changes });
  const step = (to) => () => to && go("episode", { ...params, key: to, diff: "", branch: "" });
  useEpisodeKeys({
    ...Object.fromEntries(KINDS.map(([name], i) => [String(i + 1), () => set({ by: name })])),
    m: () => set({ show: every ? "messages" : "tokens" }),
    "[": step(episode?.neighbours.previous), "]": step(episode?.neighbours.next),
  });
  const versions = useMemo(() => [...new Set((episode?.tokens.version ?? []).filter((v) => v !== null && v >= 0))].sort((a, b) => a - b), [episode]);
  if (!episode) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the episode" />`;
  const branch = Math.min(episode.branches.length - 1, Number(params.branch) || 0);
  const missing = kind === "ratio" && !episode.tokens.ratio ? (episode.tokens.ratio_missing ?? "The run did not record the trainer's probabilities.") : "";
  return html`<div class="row spread"><h1 class="row">${harmless(episode.key)} <${Outcome} row=${episode} /></h1>
      <nav class="row" aria-label="Neighbours"><button disabled=${!episode.neighbours.previous} onClick=${step(episode.neighbours.previous)}>previous <kbd>[</kbd></button><button disabled=${!episode.neighbours.next} onClick=${step(episode.neighbours.next)}>next <kbd>]</kbd></button></nav></div>
    ${episode.error && html`<div class="failure"><b>${harmless(episode.error.source)}: ${harmless(episode.error.kind)}</b> <${Text} text=${episode.error.message} /></div>`}
    <div class="episode"><div>
      <div class="toolbar row">
        <${Segmented} label="Colour the tokens by" value=${kind} onChange=${(by) => set({ by })} options=${KINDS.map(([name, text, title], i) => [name, text, `${title} (key ${i + 1})`])} />
        <${Segmented} label="What is shown" value=${every} onChange=${(value) => set({ show: value ? "tokens" : "messages" })} options=${[[false, "messages"], [true, "every token"]]} />
        ${episode.branches.length > 1 && html`<label>branch <select onChange=${(event) => set({ branch: event.target.value })}>${episode.branches.map((one, i) => html`<option value=${i} selected=${i === branch}>${i + 1} of ${episode.branches.length}: ${count(one.turns.length, "turn")}${one.reason ? `, ${harmless(one.reason)}` : ""}</option>`)}</select></label>`}
        <${Scale} kind=${kind} versions=${versions} oldest=${versions[0] ?? 0} />
      </div>
      ${missing && html`<p class="note">${harmless(missing)}</p>`}
      ${!episode.tokens.text && html`<p class="note">${harmless(episode.tokens.text_missing ?? "The tokens' texts are unknown.")}</p>`}
      ${diff && html`<${Diff} id=${id} a=${diff} b=${key} />`}
      <div class="by-${kind}">
        ${every
          ? html`<${EveryToken} key=${`${key} ${branch}`} episode=${episode} branch=${branch} oldest=${versions[0] ?? 0} onInspect=${setAt} />`
          : html`<${Conversation} key=${`${key} ${branch}`} episode=${episode} branch=${branch} oldest=${versions[0] ?? 0} onInspect=${setAt} />`}
      </div>
      <${Inspect} tokens=${episode.tokens} at=${at} />
    </div><${Aside} id=${id} episode=${episode} group=${group} diff=${diff} /></div>`;
}
