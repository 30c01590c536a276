// The rollbacks that consumers were told last, each drawn as a graph.
import { drawBranches, tellRollback } from "./branch_graph.js";
import { formatNumber, formatTime, make, reconcile, setText, showEmpty } from "./dom.js";

const keyOf = (one) => `${one.at} ${one.dialect} ${one.consumer} ${one.vbucket} ${one.start_seqno}`;

export class RollbackList {
  constructor(place, count) {
    this.place = place;
    this.count = count;
    this.chosen = null;
    this.drawn = null;
    this.picks = make("ol", { class: "picks", "aria-label": "Rollbacks" });
    this.graph = make("div");
    this.box = make("div", { class: "rollbacks" }, this.picks, this.graph);
  }

  update(document) {
    const { rollbacks, rollback_count: total } = document;
    if (rollbacks === null) {
      setText(this.count, total === null ? "" : `${formatNumber(total)} demanded`);
      showEmpty(this.place, "The server does not report its rollbacks.");
      return;
    }
    setText(this.count, total ? `${formatNumber(total)} since the bucket was opened${total > rollbacks.length ? `, the last ${rollbacks.length} shown` : ""}` : "");
    if (!rollbacks.length) {
      showEmpty(this.place, "No consumer had to roll back since the bucket was opened. After a failover, the branches and the common point are drawn here.");
      this.drawn = null;
      return;
    }
    if (this.place.firstChild !== this.box) this.place.replaceChildren(this.box);
    if (!rollbacks.some((one) => keyOf(one) === this.chosen)) this.chosen = null;
    const shown = rollbacks.find((one) => keyOf(one) === this.chosen) ?? rollbacks[0];
    reconcile(this.picks, rollbacks, keyOf, (one) => this.#makePick(one, document), (child, one) => {
      child.firstChild.setAttribute("aria-pressed", String(one === shown));
      child.firstChild.onclick = () => { this.chosen = keyOf(one); this.update(document); };
    });
    if (this.drawn !== keyOf(shown)) this.#draw(shown);
  }

  #makePick(one) {
    return make("li", {}, make("button", { type: "button" },
      make("span", { class: "muted" }, formatTime(one.at)),
      make("span", {}, `vb ${one.vbucket}`, make("span", { class: "sub" }, one.consumer)),
      make("span", {}, `${formatNumber(one.start_seqno)} → ${formatNumber(one.seqno)}`)));
  }

  #draw(one) {
    this.drawn = keyOf(one);
    this.graph.replaceChildren(
      drawBranches({ log: one.failover_log, high: one.high_seqno, rollback: one, width: this.graph.clientWidth }),
      make("p", { class: "story" }, tellRollback(one)));
  }
}
