/* A promise as the state of a view. */
import { useEffect, useState } from "../vendor/htm-preact.module.js";

/* {data, failure, loading}; asks again when `key` changes, and shows what was there until the answer comes. */
export function useAsked(ask, key) {
  const [state, setState] = useState({ data: null, failure: null, key: undefined });
  useEffect(() => {
    let current = true;
    ask().then(
      (data) => current && setState({ data, failure: null, key }),
      (failure) => current && setState({ data: null, failure, key }),
    );
    return () => {
      current = false;
    };
  }, [key]);
  return { ...state, loading: state.key !== key };
}
