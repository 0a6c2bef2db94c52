// The form that asks for a user of the server.
import { logIn } from './api.js';
import { h, render } from './dom.js';

/** The server or the console does not answer: there is nothing to log in to yet. */
export function wait(text) {
  document.title = 'Penstock';
  render(document.getElementById('app'), h('main', { class: 'login', id: 'main' }, brand(),
    h('div', { class: 'card form', role: 'status' }, h('p', {}, text),
      h('p', { class: 'soft small' }, 'The page opens by itself when it answers.'))));
}

const brand = () =>
  h('h1', {}, h('img', { src: '/static/icon.svg', alt: '', width: 28, height: 28 }), 'Penstock console');

export function login(done, text = '') {
  document.title = 'Log in · Penstock';
  const app = document.getElementById('app');
  let busy = false;
  const draw = (wrong) => render(app, h('main', { class: 'login', id: 'main' },
    brand(),
    h('form', { class: 'card form', onsubmit: submit },
      h('p', { class: 'soft small' }, 'Log in with a user of the server. You may do here what this user may do there.'),
      h('label', { class: 'field' }, 'User',
        h('input', { name: 'user', autocomplete: 'username', value: 'default', autocapitalize: 'none' })),
      h('label', { class: 'field' }, 'Password',
        h('input', { name: 'password', type: 'password', autocomplete: 'current-password' })),
      wrong ? h('p', { class: 'wrong', role: 'alert' }, wrong) : null,
      h('button', { class: 'main', disabled: busy }, 'Log in'))));
  async function submit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    busy = true;
    draw('');
    try {
      await logIn(form.get('user'), form.get('password'));
      sessionStorage.removeItem('left');
      render(app);
      done();
    } catch (error) {
      busy = false;
      draw(error.message);
      document.querySelector('input[name="password"]').select();
    }
  }
  render(app);
  draw(text);
  document.querySelector('input[name="password"]').focus();
}
