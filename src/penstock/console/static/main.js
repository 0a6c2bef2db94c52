// The start: a session, the frame, the page of the address.
import { logIn, resume } from './api.js';
import { keepTimes } from './format.js';
import { start as startKeyboard } from './keyboard.js';
import { onState } from './live.js';
import { login, wait } from './login.js';
import clients from './pages/clients.js';
import keyPage from './pages/key.js';
import keys from './pages/keys.js';
import nodes from './pages/nodes.js';
import overview from './pages/overview.js';
import pipelines from './pages/pipelines.js';
import stream from './pages/stream.js';
import streams from './pages/streams.js';
import { page, start } from './router.js';
import { draw, setAway } from './shell.js';

page('/', overview);
page('/streams', streams);
page('/stream', stream);
page('/pipelines', pipelines);
page('/clients', clients);
page('/keys', keys);
page('/key', keyPage);
page('/nodes', nodes);

function begin() {
  if (location.pathname === '/login') history.replaceState(null, '', '/');
  draw();
  document.addEventListener('page', draw);
  start();
  startKeyboard();
  keepTimes();
}

/** A session there is, or one of the user that needs no password; otherwise the form. */
async function enter() {
  try {
    await resume();
  } catch (unknown) {
    try {
      if (sessionStorage.getItem('left')) throw unknown;
      await logIn('', '');
    } catch (refused) {
      if (refused.status === 503 || refused.status === 0) {
        wait(refused.message);
        setTimeout(enter, 1500);
        return;
      }
      login(begin, refused.status === 401 ? '' : refused.message);
      return;
    }
  }
  begin();
}

onState(setAway, () => location.reload());
enter();
