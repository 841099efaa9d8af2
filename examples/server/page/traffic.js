// The same traffic for all lanes: one request, a burst, a steady rate, or a burst on both sides of an edge.

const sleep = (milliseconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()));
  });

/** How long before and after an edge the bursts are sent, in milliseconds. */
const [BEFORE, AFTER] = [700, 250];

/** More requests than this are not left unanswered. */
const MOST_PENDING = 1000;

/** Sends to whatever lanes there are at the time. */
export class Traffic {
  #lanes;
  #clock;
  #announce;
  #stop = new AbortController();
  #steady = null;

  /** Calls `lanes` for the lanes, and `announce` with text about what happens. */
  constructor(lanes, clock, announce) {
    this.#lanes = lanes;
    this.#clock = clock;
    this.#announce = announce;
  }

  /** Sends `count` requests to each lane at once, and announces the outcome. */
  async burst(count, cost) {
    const lanes = this.#lanes();
    const sent = lanes.map(() => []);
    // Each lane in turn, so that none is served later than the others.
    for (let request = 0; request < count; request += 1) {
      lanes.forEach((lane, index) => sent[index].push(lane.send(cost)));
    }
    const stop = this.#stop;
    const records = await Promise.all(sent.map((requests) => Promise.all(requests)));
    if (stop !== this.#stop) return;
    const told = lanes.map((lane, index) => `${lane.algorithm.title}: ${summary(records[index])}.`);
    this.#announce(told.join(' '));
  }

  /** Sends a burst shortly before and another shortly after the end of a window of `period` milliseconds. */
  async acrossEdge(count, cost, period) {
    const stop = this.#stop;
    const edge = () => (Math.floor(this.#clock.now() / period) + 1) * period;
    let end = edge();
    if (end - BEFORE < this.#clock.now()) end += period;
    for (let left = end - BEFORE - this.#clock.now(); left > 0; left = end - BEFORE - this.#clock.now()) {
      this.#announce(`Waiting for the end of the window: ${Math.ceil(left / 1000)} s`);
      await sleep(Math.min(left, left % 1000 || 1000), stop.signal);
      if (stop !== this.#stop) return;
    }
    this.#announce('Sending one burst before the edge, and one after it.');
    const first = this.burst(count, cost);
    await sleep(end + AFTER - this.#clock.now(), stop.signal);
    if (stop !== this.#stop) return;
    await Promise.all([first, this.burst(count, cost)]);
  }

  get isSteady() {
    return this.#steady !== null;
  }

  /**
   * Sends requests at a rate until `stopSteady`. Calls `settings` before each, for `{perSecond, cost}`, or for false to
   * send none.
   */
  startSteady(settings) {
    const next = () => {
      const { perSecond = 2, cost } = settings();
      for (const lane of cost ? this.#lanes() : []) {
        if (lane.pending.size < MOST_PENDING) lane.send(cost);
      }
      this.#steady = setTimeout(next, 1000 / perSecond);
    };
    next();
  }

  stopSteady() {
    clearTimeout(this.#steady);
    this.#steady = null;
  }

  /** Stops everything that is under way. */
  stop() {
    this.stopSteady();
    this.#stop.abort();
    this.#stop = new AbortController();
  }
}

function summary(records) {
  const count = (...verdicts) => records.filter(({ verdict }) => verdicts.includes(verdict)).length;
  const delayed = count('delayed');
  const parts = [
    [count('allowed', 'delayed'), delayed > 0 ? `allowed (${delayed} delayed)` : 'allowed'],
    [count('denied'), 'denied'],
    [count('failed', 'pending'), 'failed'],
  ];
  const counted = parts.filter(([number]) => number > 0);
  return counted.map(([number, verdict]) => `${number} ${verdict}`).join(', ');
}
