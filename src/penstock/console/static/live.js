// Views that stay true: server-sent events, with a banner while the server or the console is away.
import { query, view } from './api.js';

let away = () => {};
let loggedOut = () => {};

export function onState(whenAway, whenLoggedOut) {
  away = whenAway;
  loggedOut = whenLoggedOut;
}

/** Follow an address; returns what ends it. `handlers` are by kind of event; problems have a default. */
export function follow(path, params, handlers) {
  let source;
  let timer;
  let over = false;
  const connect = () => {
    source = new EventSource(`/api/${path}?${query(params)}`);
    for (const [kind, handler] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        if (kind === 'news') away(null);
        handler(JSON.parse(event.data));
      });
    }
    source.addEventListener('problem', (event) => {
      const problem = JSON.parse(event.data);
      if (problem.status === 503) away(problem.error);
      else if (problem.status === 401) loggedOut();
      else if (handlers.wrong) {
        away(null);
        handlers.wrong(problem);
      }
      if (problem.status === 401 || problem.status === 403) stop();
      if (problem.status === 429) { // too many open pages: look again when some may be closed
        source.close();
        retry(10000);
      }
    });
    source.onerror = () => {
      // The console itself is gone, or says no. EventSource tries again by itself only in the first case.
      if (over) return;
      source.close();
      fetch('/api/session', { credentials: 'same-origin' }).then((response) => {
        if (response.status === 401) loggedOut();
        else retry();
      }).catch(() => {
        away('The console does not answer. Is it still running?');
        retry();
      });
    };
  };
  const retry = (wait = 1500) => {
    if (!over) timer = setTimeout(connect, wait);
  };
  const stop = () => {
    over = true;
    clearTimeout(timer);
    source?.close();
  };
  connect();
  return stop;
}

/** A view once. While the server or the console is away it is asked again, until the page is `over`. */
export async function once(name, params, over = () => false) {
  for (;;) {
    try {
      const found = await view(name, params);
      away(null);
      return found;
    } catch (problem) {
      if (problem.status === 401) loggedOut();
      if (over() || (problem.status !== 503 && problem.status !== 0)) throw problem;
      away(problem.message);
    }
    await new Promise((resolve) => { setTimeout(resolve, 1500); });
  }
}

export const live = (name, params, news, wrong) => follow(`live/${name}`, params, { news, wrong });
