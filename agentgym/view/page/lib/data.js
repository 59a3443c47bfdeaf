/* Where all data comes from: the server, or, in an exported file, the element that holds the server's answers. */
import { useLayoutEffect, useRef, useState } from "../vendor/htm-preact.module.js";

const island = document.getElementById("agentgym-data");
const answers = island ? JSON.parse(island.textContent) : null;
const kept = new Map(); // path -> promise of what is asked for again and does not change
const early = new Map(); // path -> answer, while the first picture is drawn with it

export const exported = answers !== null;

export class Failure extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.kind = error.kind;
    this.nearest = error.nearest;
  }
}

/* "/api/…" with its parameters -> the answer. Throws Failure with the server's words. */
export async function get(path) {
  if (exported) {
    if (`GET ${path}` in answers) return answers[`GET ${path}`];
    throw new Failure(404, { kind: "not_exported", message: "This is not in the exported file. Open the run with `agentgym view`." });
  }
  return answer(await reach(path, { headers: { accept: "application/json" } }));
}

export async function send(method, path, body = {}) {
  if (exported) throw new Failure(405, { kind: "exported", message: "An exported file has no server." });
  const headers = { accept: "application/json", "content-type": "application/json" };
  return answer(await reach(path, { method, headers, body: JSON.stringify(body) }));
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Failure(0, { kind: "unreachable", message: "The server does not answer. Is `agentgym view` still running?" });
  }
}

async function answer(response) {
  const data = await response.json().catch(() => null);
  if (!response.ok || data === null) {
    throw new Failure(response.status, data?.error ?? { kind: "http", message: `The server answered ${response.status}.` });
  }
  return data;
}

/* For what never changes, such as one episode: asked for once. */
export function getOnce(path) {
  if (!kept.has(path)) {
    const promise = get(path);
    kept.set(path, promise);
    promise.catch(() => kept.delete(path));
    if (kept.size > 60) kept.delete(kept.keys().next().value);
  }
  return kept.get(path);
}

/* Draws with answers that are there already, [[path, answer]]: once and whole, not first without them. */
export function drawWith(found, draw) {
  found.forEach(([path, answer]) => early.set(path, answer));
  draw();
  early.clear();
}

/* {data, failure, loading}. path null: nothing is asked for. While another path loads, the data before is kept. */
export function useData(path, { again = 0, once = false } = {}) {
  const [state, setState] = useState(() => (early.has(path) ? { data: early.get(path), failure: null, path } : { data: null, failure: null, path: null }));
  const latest = useRef(null);
  useLayoutEffect(() => { // not after the next frame, as `useEffect`: what waits for data waits for it at each level
    latest.current = path;
    if (path === null) {
      setState({ data: null, failure: null, path });
      return;
    }
    if (early.delete(path)) return;
    const current = () => latest.current === path;
    (once ? getOnce(path) : get(path)).then(
      (data) => current() && setState({ data, failure: null, path }),
      (failure) => current() && setState((before) => ({ data: before.path === path ? before.data : null, failure, path })),
    );
  }, [path, again, once]);
  return { ...state, loading: state.path !== path };
}

export function runPath(run, rest = "") {
  return `/api/runs/${encodeURIComponent(run)}${rest}`;
}

export function query(params) {
  const pairs = Object.entries(params).flatMap(([key, value]) => (Array.isArray(value) ? value.map((v) => [key, v]) : [[key, value]]));
  const text = new URLSearchParams(pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();
  return text ? `?${text}` : "";
}

/* Calls on[kind](data) for every server-sent event of a run. Returns what ends it. */
export function listen(run, on) {
  if (exported || typeof EventSource === "undefined") return () => {};
  const source = new EventSource(runPath(run, "/live"));
  for (const kind of Object.keys(on)) source.addEventListener(kind, (event) => on[kind](JSON.parse(event.data)));
  return () => source.close();
}
