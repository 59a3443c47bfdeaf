/* The environments that are installed, their tasks, and a task played by hand. */
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.module.js";
import { Facts, Failed, Loading } from "../parts/bits.js";
import { ToolCall } from "../parts/calls.js";
import { Text } from "../parts/text.js";
import { count, duration, figure, harmless, plain } from "../lib/format.js";
import { query, send, useData } from "../lib/data.js";
import { go, link } from "../lib/url.js";

const PAGE = 50;

function List({ id, envs }) {
  return html`<h1>Environments</h1><div class="scroll"><table><caption class="visually-hidden">Environments that are installed</caption><thead><tr><th>name</th><th class="num">version</th><th>what it is</th><th>from</th></tr></thead>
    <tbody>${envs.map((env) => html`<tr key=${env.name}><td>${env.error ? html`<span>${harmless(env.name)}</span>` : html`<a href=${link("environments", { run: id, env: env.name })}>${harmless(env.name)}</a>`}</td><td class="num">${figure(env.version)}</td><td>${harmless(env.summary)}${env.error && html` <span class="warn">${harmless(env.error)}</span>`}</td><td class="soft">${harmless(env.distribution)}</td></tr>`)}</tbody></table></div>`;
}

function opening(task) {
  const text = task.prompt.findLast((message) => message.role === "user")?.content ?? task.prompt.at(-1)?.content ?? "";
  return harmless(text.replaceAll("\n", " ").slice(0, 200));
}

function One({ id, params, canPlay }) {
  const { env, split = "test" } = params;
  const offset = Number(params.offset) || 0;
  const { data, failure } = useData(`/api/envs/${encodeURIComponent(env)}${query({ split, n: PAGE, offset })}`);
  const set = (changes) => go("environments", { run: id, env, split, ...changes });
  if (!data || data.name !== env) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the tasks" />`;
  return html`<p><a href=${link("environments", { run: id })}>all environments</a></p>
    <h1>${harmless(data.name)} <span class="soft">version ${data.version}</span></h1><p class="note">${harmless(data.summary)}</p>
    <${Failed} failure=${failure} />
    <${Facts} pairs=${[["rewards", data.rewards.map((row) => `${row.name} × ${row.weight}`).join(", ")], ["turns", `at most ${data.max_turns}`], ["tools", data.tools ? data.tools.map((tool) => tool.function?.name ?? tool.name).join(", ") || "none" : ""], ["sandbox", data.sandbox || "not needed"]]} />
    ${data.options.length > 0 && html`<section aria-labelledby="options"><h2 id="options">Options</h2><div class="scroll"><table><thead><tr><th>env.options</th><th>default</th><th>what it is</th></tr></thead>
      <tbody>${data.options.map((one) => html`<tr key=${one.key}><td title=${harmless(one.type)}><code>${harmless(one.key)}</code></td><td><code>${harmless(one.default || "required")}</code></td><td>${harmless(one.text)}</td></tr>`)}</tbody></table></div></section>`}
    <section aria-labelledby="tasks"><div class="head"><h2 id="tasks">Tasks</h2>
      <label>split <select onChange=${(event) => set({ split: event.target.value })}>${["test", "train"].map((name) => html`<option selected=${name === split}>${name}</option>`)}</select></label>
      <button disabled=${!offset} onClick=${() => set({ offset: Math.max(0, offset - PAGE) || "" })}>previous</button><button disabled=${!data.more} onClick=${() => set({ offset: offset + PAGE })}>next</button></div>
      <div class="scroll"><table><thead><tr><th>task</th><th class="num">level</th><th>prompt</th><td></td></tr></thead>
      <tbody>${data.tasks.map((task) => html`<tr key=${task.task_id}><td class="clip" title=${harmless(task.task_id)}>${harmless(task.task_id)}</td><td class="num">${figure(task.difficulty)}</td><td class="clip" title=${opening(task)}>${opening(task)}</td>
        <td>${canPlay && html`<a href=${link("play", { run: id, env, split, task: task.task_id })} aria-label=${`play ${harmless(task.task_id)}`}>play</a>`}</td></tr>`)}</tbody></table></div></section>`;
}

export function EnvironmentsView({ id, params }) {
  const { data, failure } = useData("/api/envs");
  if (!data) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Looking for environments" />`;
  return params.env ? html`<${One} id=${id} params=${params} canPlay=${data.can_play} />` : html`<${List} id=${id} envs=${data.envs} />`;
}

/* Arguments of each name that a tool's schema has, to be filled in. */
function skeleton(tool) {
  const empty = { integer: 0, number: 0, boolean: false, array: [], object: {} };
  const properties = Object.entries(tool?.function.parameters?.properties ?? {});
  return JSON.stringify(Object.fromEntries(properties.map(([key, schema]) => [key, empty[schema.type] ?? ""])));
}

/* What a tool is called with: a form of one field, JSON, with what the schema allows beside it. */
function CallForm({ tools, calls, onCalls }) {
  const [name, setName] = useState(tools[0]?.function.name);
  const [text, setText] = useState(skeleton(tools[0]));
  const [wrong, setWrong] = useState("");
  const tool = tools.find((one) => one.function.name === name);
  const choose = (chosen) => {
    setName(chosen);
    setText(skeleton(tools.find((one) => one.function.name === chosen)));
  };
  const add = () => {
    try {
      onCalls([...calls, { name, arguments: JSON.parse(text) }]);
      setWrong("");
      setText(skeleton(tool));
    } catch {
      setWrong("The arguments are not JSON, for example {\"a\": 1}.");
    }
  };
  return html`<fieldset class="call-form"><legend>Call a tool</legend>
    <div class="row"><label>tool <select onChange=${(event) => choose(event.target.value)}>${tools.map((one) => html`<option selected=${one.function.name === name}>${one.function.name}</option>`)}</select></label><span class="soft">${harmless(tool?.function.description ?? "")}</span></div>
    <p class="soft">${Object.entries(tool?.function.parameters?.properties ?? {}).map(([key, schema]) => `${key}: ${schema.type ?? "any"}`).join(", ") || "no arguments"}</p>
    <label class="block">arguments, as JSON <textarea rows="2" value=${text} onInput=${(event) => setText(event.target.value)} spellcheck="false"></textarea></label>
    ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
    <div class="row"><button type="button" onClick=${add}>add this call to the turn</button>${calls.map((call, i) => html`<button type="button" class="quiet" onClick=${() => onCalls(calls.filter((_, k) => k !== i))} aria-label=${`remove the call of ${call.name}`}>${call.name} ×</button>`)}</div>
  </fieldset>`;
}

function Result({ play }) {
  if (!play.done) return null;
  return html`<div class="verdict ${play.success ? "learning" : play.success === null ? "" : "not_learning"}" role="status"><h1>${play.success ? "Success" : play.outcome === "infra_error" ? "Infrastructure broke" : play.success === null ? "Success unknown" : "No success"}, reward ${figure(play.reward)}</h1><p>ended by ${harmless(play.stop ?? "")}, ${harmless(play.outcome ?? "")}${play.error ? `: ${harmless(play.error.message ?? plain(play.error))}` : ""}</p></div>
    <table><thead><tr><th>reward</th><th class="num">value</th><th class="num">weight</th></tr></thead><tbody>${play.rewards.map((row) => html`<tr key=${row.name}><td>${harmless(row.name)}</td><td class="num">${row.value === null ? "not scored" : figure(row.value)}</td><td class="num">${figure(row.weight)}</td></tr>`)}</tbody></table>`;
}

export function PlayView({ id, params }) {
  const { env, split = "test", task } = params;
  const [play, setPlay] = useState(null);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const [text, setText] = useState("");
  const [calls, setCalls] = useState([]);
  const box = useRef(null);
  const running = useRef(null);
  const doing = async (what) => {
    setBusy(true);
    setFailure(null);
    try {
      const answered = await what();
      running.current = answered.done ? null : answered.id;
      setPlay(answered);
      setText("");
      setCalls([]);
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
    box.current?.focus();
  };
  const begin = () => doing(() => send("POST", "/api/plays", { env, task_id: task, split, seed: 0, options: {} }));
  useEffect(() => {
    begin();
    return () => running.current && send("DELETE", `/api/plays/${encodeURIComponent(running.current)}`).catch(() => {});
  }, [env, split, task]);
  const say = () => doing(() => send("POST", `/api/plays/${encodeURIComponent(play.id)}/say`, { text, calls }));
  const typed = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) say();
  };
  if (!play) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Starting the task; the first one with a sandbox takes some seconds" />`;
  const answered = play.tool_calls ?? [];
  return html`<p><a href=${link("environments", { run: id, env, split })}>tasks of ${harmless(env)}</a></p>
    <h1>${harmless(task)}</h1>
    <div class="play"><div>
      ${play.messages.map((message, i) => html`<div class="message ${message.role}" key=${i}><header><b>${message.role}</b>${message.name ? html`<span>${harmless(message.name)}</span>` : ""}</header><div><${Text} text=${message.content ?? ""} />${(message.tool_calls ?? []).map((call) => html`<p class="mono">${harmless(call.function?.name ?? call.name ?? "")}(${harmless(plain(call.function?.arguments ?? call.arguments ?? {}))})</p>`)}</div></div>`)}
      <${Failed} failure=${failure} />
      ${play.done
        ? html`<${Result} play=${play} /><div class="row later"><button class="primary" onClick=${begin}>Play it again</button></div>`
        : html`<form onSubmit=${(event) => { event.preventDefault(); say(); }}>
            <label class="block">What the agent says in turn ${play.turn + 1} of ${play.max_turns} <textarea ref=${box} rows="6" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${typed} maxlength="20000" spellcheck="false"></textarea></label>
            ${play.tools?.length > 0 && html`<${CallForm} tools=${play.tools} calls=${calls} onCalls=${setCalls} />`}
            <div class="row later"><button class="primary" type="submit" disabled=${busy || (!text && !calls.length)}>${busy ? "Waiting…" : "Say it"}</button><span class="soft"><kbd>Ctrl</kbd> <kbd>Enter</kbd></span></div>
          </form>`}
    </div><aside aria-label="About this play"><${Facts} pairs=${[["environment", harmless(env)], ["split", split], ["turn", `${play.turn} of ${play.max_turns}`], ["sandbox", play.sandbox || "none"], ["ends when idle for", duration(play.idle_limit_s)], ["tool calls", answered.length ? count(answered.length, "call") : ""]]} />
      ${answered.map((call, i) => html`<${ToolCall} key=${i} call=${call} />`)}
      ${Object.keys(play.info ?? {}).length > 0 && html`<details class="later"><summary>What the environment recorded</summary><${Text} text=${plain(play.info)} cut=${4000} /></details>`}</aside></div>`;
}
