// Requests to the console, and the session they belong to.

export const session = { user: null, token: null, server: '', masked: [] };

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: 'same-origin', ...options });
  } catch {
    throw new Problem(0, 'The console does not answer. Is it still running?');
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, body.error || `The console answers ${response.status}.`);
  return body;
}

const post = (path, body) => ask(path, {
  method: 'POST',
  headers: { 'content-type': 'application/json', 'x-penstock-token': session.token || '' },
  body: JSON.stringify(body),
});

/** {a: 1, b: null} as a=1. A key is given as its id, which is percent-encoded already. */
export function query(params) {
  return Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([name, value]) =>
        `${name}=${name === 'key' || name === 'group' ? value : encodeURIComponent(value)}`).join('&');
}

export const view = (name, params = {}) => ask(`/api/view/${name}?${query(params)}`);
export const act = (name, body) => post(`/api/do/${name}`, body);

export async function resume() {
  Object.assign(session, await ask('/api/session'));
}

export async function logIn(user, password) {
  Object.assign(session, await post('/api/login', { user, password }));
}

export async function logOut() {
  await post('/api/logout', {});
  session.user = session.token = null;
}
