/** One GPU, opened from the heat map or its card: memory, adapters and requests, asked for once a second. */

import { byId, keepChildren, make, setText } from "./dom.js";
import { ago, number } from "./format.js";
import { AdapterList, adapterName, batchText, knownText, Meter, stepTimeText } from "./meters.js";

const INTERVAL_MS = 1000;
/** @type {Record<string, string>} */
const GROUPS = { qkv: "q, k, v", o: "o", gate_up: "gate, up", down: "down", embed: "embedding", head: "output head" };

export class GpuPanel {
  /** @type {string | null} */
  #uuid = null;
  /** The GPU of the facts that are there. @type {string | null} */
  #shown = null;
  #timer = 0;
  /** @type {HTMLElement | null} */
  #opener = null;
  /** @type {Map<string, { root: HTMLElement, tokens: HTMLElement, age: HTMLElement }>} */
  #requests = new Map();
  /** @type {Map<string, Meter & { root: HTMLElement }>} */
  #groups = new Map();

  /** @param {import("./names.js").Names} names */
  constructor(names) {
    this.names = names;
    this.root = byId("gpu-panel", HTMLElement);
    this.title = byId("gpu-title", HTMLElement);
    this.note = make("p", "muted gpu-note");
    this.stepTime = make("p", "badge");
    this.facts = make("div", "panel-facts");
    this.batch = new Meter("Batch");
    this.pages = new Meter("KvCache");
    this.pool = make("div", "pool");
    this.adapters = new AdapterList();
    this.numAdapters = make("h3");
    this.numRequests = make("h3");
    this.rows = make("tbody");
    const head = make("tr", "", ...["Request", "Adapter", "Tokens", "Age"].map((text) => make("th", "", text)));
    this.table = make("table", "requests", make("thead", "", head), this.rows);
    this.facts.append(
      this.stepTime, this.batch.root, this.pages.root, make("h3", "", "LoRA pool, pages of adapters in use"), this.pool,
      this.numRequests, this.table, this.numAdapters, this.adapters.root,
    );
    byId("gpu-body", HTMLElement).append(this.note, this.facts);
    byId("gpu-close", HTMLButtonElement).addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  /** @param {string} uuid */
  open(uuid) {
    this.#opener = /** @type {HTMLElement} */ (document.activeElement);
    if (uuid !== this.#shown) this.#hide();
    this.#uuid = uuid;
    this.root.hidden = false;
    setText(this.title, this.names.of(uuid));
    this.title.title = uuid;
    byId("gpu-close", HTMLButtonElement).focus({ preventScroll: true });
    void this.#refresh();
  }

  close() {
    if (!this.#uuid) return;
    clearTimeout(this.#timer);
    this.#uuid = null;
    this.root.hidden = true;
    this.#opener?.focus({ preventScroll: true });
  }

  /** Another GPU's facts would stay if this one could not be asked. */
  #hide() {
    this.#shown = null;
    this.facts.hidden = true;
    setText(this.note, "");
  }

  async #refresh() {
    clearTimeout(this.#timer);
    const uuid = this.#uuid;
    if (!uuid) return;
    const answer = await fetch(`/v1/cluster/gpus/${encodeURIComponent(uuid)}`, { cache: "no-store" }).catch(() => null);
    const body = await answer?.json().catch(() => null);
    if (uuid !== this.#uuid) return; // another was opened meanwhile
    if (answer?.ok && body) this.#show(body);
    else setText(this.note, body?.error?.message ?? "The frontend can't be reached.");
    clearTimeout(this.#timer); // it may have been closed and opened again meanwhile
    this.#timer = setTimeout(() => void this.#refresh(), INTERVAL_MS);
  }

  /** @param {any} told */
  #show(told) {
    const { gpu, requests } = told;
    this.#shown = gpu.gpu.uuid;
    this.facts.hidden = false;
    const { uuid, device, ranks, max_batch_size: capacity, num_kv_pages: pages } = gpu.gpu;
    const state = gpu.is_draining ? " · draining" : "";
    setText(this.note, `${device} · runner ${gpu.runner_id} · ${number(gpu.tokens)} tokens in ${number(gpu.steps)} steps${state} · ${ranks.length ? ranks.join(", ") : uuid}`);
    setText(this.stepTime, stepTimeText(gpu));
    this.batch.show(gpu.batch_size_mean, capacity, batchText(gpu));
    this.pages.show(pages - gpu.free_kv_pages, pages, `${pages - gpu.free_kv_pages} / ${pages} pages${knownText(gpu)}`);
    this.#showPool(told);
    const others = told.num_other_requests ? `, and ${told.num_other_requests} of other tenants` : "";
    setText(this.numRequests, `Requests: ${requests.length}${others}`);
    this.#showRequests(told);
    const byUse = AdapterList.byUse(gpu);
    setText(this.numAdapters, `Adapters: ${byUse.length} in memory, at most ${gpu.num_adapters} in a step`);
    this.adapters.show(byUse, told, told.now_ns);
  }

  /** @param {any} told */
  #showPool({ gpu, used_lora_pages: used }) {
    const totals = gpu.gpu.num_lora_pages;
    keepChildren(this.pool, this.#groups, Object.keys(totals), (group) => new Meter(GROUPS[group] ?? group));
    for (const [group, meter] of this.#groups) meter.show(used[group] ?? 0, totals[group], `${used[group] ?? 0} / ${totals[group]}`);
  }

  /** @param {any} told */
  #showRequests(told) {
    const { requests } = told;
    this.table.hidden = !requests.length;
    const ids = requests.map((/** @type {any} */ { request_id: id }) => id);
    keepChildren(this.rows, this.#requests, ids, (id) => {
      const request = requests.find((/** @type {any} */ { request_id: other }) => other === id);
      const [name, tokens, age] = [make("td", "request", id), make("td"), make("td")];
      name.title = request.tenant ? `${id} of ${request.tenant}` : id;
      const adapter = request.digest ? adapterName(told.adapters[request.digest], request.digest, told.tenant) : "base model";
      return { root: make("tr", "", name, make("td", "", adapter), tokens, age), tokens, age };
    });
    for (const request of requests) {
      const kept = this.#requests.get(request.request_id);
      if (!kept) continue;
      setText(kept.tokens, `${request.num_prompt_tokens} + ${request.num_generated_tokens} / ${request.max_tokens}`);
      setText(kept.age, ago((told.now_ns - request.admitted_ns) / 1e9));
    }
  }
}
