/* Where the reader is: the part of the address after `#`, for example `#/episodes?run=a&sort=-reward`. */
import { useEffect, useState } from "../vendor/htm-preact.module.js";

export function parseHash(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  return { view: parts[0] || "run", parts: parts.slice(1), params: Object.fromEntries(new URLSearchParams(query || "")) };
}

/* params that are undefined, null or "" are left out: what is not in the address is the default. */
export function link(view, params = {}) {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

export function go(view, params) {
  location.hash = link(view, params);
}

/* Changes the address without a new entry in the history: for filters that are typed. */
export function amend(view, params) {
  history.replaceState(history.state, "", link(view, params));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parseHash(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parseHash(location.hash));
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}
