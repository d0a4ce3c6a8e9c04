/** The few words in which the page is changed. */

/**
 * An element of the page that has to be there.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new Error(`#${id} is not a ${type.name}`);
  return element;
}

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {...(Node | string)} children
 */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Changes a text only where it differs: what stays the same costs no layout. @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Gives ``parent`` a child for each key, in order, and keeps those that it has.
 * @template T
 * @param {Element} parent
 * @param {Map<string, T>} kept
 * @param {string[]} keys
 * @param {(key: string) => T & { root: HTMLElement }} create
 */
export function keepChildren(parent, kept, keys, create) {
  const wanted = new Set(keys);
  for (const [key, child] of kept) {
    if (!wanted.has(key)) {
      /** @type {any} */ (child).root.remove();
      kept.delete(key);
    }
  }
  keys.forEach((key, index) => {
    const child = /** @type {T & { root: HTMLElement }} */ (kept.get(key) ?? create(key));
    kept.set(key, child);
    if (parent.children[index] !== child.root) parent.insertBefore(child.root, parent.children[index] ?? null);
  });
}
