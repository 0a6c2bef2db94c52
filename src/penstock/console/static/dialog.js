// Questions before an action, and what came of it.
import { h, render } from './dom.js';

export function toast(text) {
  const node = h('div', { class: 'toast' }, text);
  document.getElementById('toasts').append(node);
  setTimeout(() => node.remove(), 6000);
}

/**
 * Ask before something is done. `body` is nodes, or a function that gets the dialog's `refresh` and gives nodes.
 * `cancel` is null if there is nothing to decide. `run` does it: the text of its answer is shown, and its error stays
 * in the dialog.
 */
export function confirm({ title, body = [], button = 'OK', danger = false, cancel = 'Cancel', run }) {
  return new Promise((resolve) => {
    let failure = '';
    let busy = false;
    const dialog = h('dialog', { 'aria-labelledby': 'dialog-title' });
    const draw = () => render(dialog, h('form', { method: 'dialog', onsubmit: submit },
      h('h2', { id: 'dialog-title' }, title),
      typeof body === 'function' ? body(draw) : body,
      failure ? h('p', { class: 'wrong', role: 'alert' }, failure) : null,
      h('div', { class: 'buttons' },
        cancel ? h('button', { type: 'button', onclick: () => dialog.close() }, cancel) : null,
        h('button', { class: danger ? 'danger' : 'main', 'data-confirm': '', disabled: busy }, button))));
    async function submit(event) {
      event.preventDefault();
      if (busy) return;
      busy = true;
      failure = '';
      draw();
      try {
        const done = await run(new FormData(event.target));
        if (done?.text) toast(done.text);
        dialog.close('done');
      } catch (error) {
        failure = error.message;
      }
      busy = false;
      draw();
    }
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'done');
    });
    draw();
    document.body.append(dialog);
    dialog.showModal();
  });
}
