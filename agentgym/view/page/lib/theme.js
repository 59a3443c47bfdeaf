/* Light, dark, or as the system says; remembered in a cookie, but for a page that is a file. */
import { useEffect, useState } from "../vendor/htm-preact.module.js";

export const THEMES = ["system", "light", "dark"];

/* The server wrote what was chosen into the page. Asking the browser's storage would hold up the first view. */
function remembered() {
  return document.documentElement.dataset.theme ?? "system";
}

function remember(theme) {
  document.cookie = `agentgym-theme=${theme}; path=/; max-age=31536000; samesite=strict`;
  return theme;
}

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/* {theme, dark, next}: what is chosen, what is shown, and how to choose the next one. */
export function useTheme() {
  const [theme, setTheme] = useState(remembered);
  const [system, setSystem] = useState(dark.matches);
  apply(theme);
  useEffect(() => {
    const changed = () => setSystem(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  const next = () => setTheme((before) => remember(THEMES[(THEMES.indexOf(before) + 1) % THEMES.length]));
  return { theme, dark: theme === "dark" || (theme === "system" && system), next };
}

const known = new Map(); // of each scheme: asking the browser for a style costs it a layout

/* The colour of a custom property as a canvas can use it, in the scheme that is shown now. */
export function colour(name, alpha = 1) {
  const key = `${document.documentElement.dataset.theme ?? dark.matches} ${name}`;
  if (!known.has(key)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    known.set(key, getComputedStyle(probe).color);
    probe.remove();
  }
  const found = known.get(key);
  return alpha === 1 ? found : found.replace(/^rgb\((.*)\)$/, (_, inside) => `rgba(${inside}, ${alpha})`);
}
