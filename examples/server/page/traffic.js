// The same traffic for all lanes: one request, a burst, a steady rate, a burst on both sides of an edge, or a client of
// a typical kind.

/** Waits, or returns early when `signal` aborts. */
export const sleep = (milliseconds, signal) =>
  new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });

/** How long before and after an edge the bursts are sent, in milliseconds. */
const [BEFORE, AFTER] = [600, 300];

/** More requests than this are not left unanswered. */
const MOST_PENDING = 100;

/** The pause of a client that retries at once, and that of a person between two pages, in milliseconds. */
const [RETRY, READING] = [50, 6000];

/** Sends to whatever lanes there are at the time. */
export class Traffic {
  #lanes;
  #clock;
  #announce;
  #stop = new AbortController();

  /** Calls `lanes` for the lanes, and `announce` with text about what happens. */
  constructor(lanes, clock, announce) {
    this.#lanes = lanes;
    this.#clock = clock;
    this.#announce = announce;
  }

  /** Aborts when everything that is under way is stopped. */
  get signal() {
    return this.#stop.signal;
  }

  /** Sends `count` requests to each lane at once, and resolves when all are decided, with a summary. */
  async send(count, cost) {
    const lanes = this.#lanes();
    const sent = lanes.map(() => []);
    // Each lane in turn, so that none is served later than the others.
    for (let request = 0; request < count; request += 1) {
      lanes.forEach((lane, index) => lane.pending.size < MOST_PENDING && sent[index].push(lane.send(cost)));
    }
    const records = await Promise.all(sent.map((requests) => Promise.all(requests)));
    return lanes.map((lane, index) => `${lane.algorithm.title}: ${summary(records[index])}.`).join(' ');
  }

  /** Sends a burst, and announces the outcome. */
  async burst(count, cost) {
    const { signal } = this;
    const text = await this.send(count, cost);
    if (!signal.aborted) this.#announce(text);
  }

  /** Waits until `before` milliseconds before the end of a window of `period` milliseconds, and returns that end. */
  async edge(period, before, signal) {
    const now = this.#clock.now();
    const end = Math.ceil((now + before) / period) * period;
    await sleep(end - before - now, signal);
    return end;
  }

  /** Waits until the server's time is `instant`. */
  async until(instant, signal) {
    await sleep(instant - this.#clock.now(), signal);
  }

  /** Sends a burst shortly before and another shortly after the end of a window of `period` milliseconds. */
  async acrossEdge(count, cost, period) {
    const { signal } = this;
    this.#announce('Waiting for the end of the window.');
    const end = await this.edge(period, BEFORE, signal);
    if (signal.aborted) return;
    this.#announce('Sending one burst before the edge, and one after it.');
    const first = this.burst(count, cost);
    await this.until(end + AFTER, signal);
    if (!signal.aborted) await Promise.all([first, this.burst(count, cost)]);
  }

  /** Sends requests until `signal` aborts. Calls `settings` before each, for `{perSecond, cost}`, or false for none. */
  async steady(settings, signal) {
    let due = this.#clock.now();
    while (!signal.aborted) {
      const { perSecond = 2, cost } = settings();
      if (cost) this.send(1, cost);
      // What the browser was too slow for is not made up for later.
      due = Math.max(due + 1000 / perSecond, this.#clock.now());
      await this.until(due, signal);
    }
  }

  /** Stops everything that is under way. */
  stop() {
    this.#stop.abort();
    this.#stop = new AbortController();
  }
}

const half = (number) => Math.ceil(number / 2);

/** Returns a client that sends at the rate of the limits, times a factor. */
function atRate(name, title, factor) {
  const perSecond = ({ tokens, seconds }) => (factor * tokens) / seconds;
  return {
    name,
    title,
    describe: (rate) => `${title.toLowerCase()}: ${Number(perSecond(rate).toPrecision(2))} requests a second.`,
    run: (traffic, rate) => traffic.steady(() => ({ perSecond: perSecond(rate), cost: 1 }), rate.signal),
  };
}

export const TWICE = atRate('twice', 'Twice the rate', 2);

/**
 * Typical clients. Each sends until a signal aborts, at a rate that depends on that of the limits, which allow
 * `tokens` in `seconds`.
 */
export const CLIENTS = [
  {
    name: 'retries',
    title: 'Retries at once',
    describe: () => 'A client without patience: it repeats a denied request 50 ms later.',
    run: async (traffic, { lanes, signal }) => {
      const insist = async (lane) => {
        while (!signal.aborted && !lane.isClosed) {
          await lane.send(1);
          await sleep(RETRY, signal);
        }
      };
      await Promise.all(lanes.map(insist));
    },
  },
  {
    name: 'cron',
    title: 'Cron job',
    describe: ({ tokens, seconds }) =>
      `A cron job on the minute, which is ${seconds} s here: ${half(3 * tokens)} requests as each begins.`,
    run: async (traffic, { tokens, seconds, signal }) => {
      while (!signal.aborted) {
        await traffic.edge(seconds * 1000, -20, signal);
        if (!signal.aborted) traffic.send(half(3 * tokens), 1);
        await sleep(100, signal);
      }
    },
  },
  {
    name: 'page',
    title: 'Page load',
    describe: () => 'A page that loads 15 resources, every 6 seconds.',
    run: async (traffic, { signal }) => {
      while (!signal.aborted) {
        traffic.send(15, 1);
        await sleep(READING, signal);
      }
    },
  },
  TWICE,
  atRate('half', 'Half the rate', 0.5),
];

function summary(records) {
  const count = (...verdicts) => records.filter(({ verdict }) => verdicts.includes(verdict)).length;
  const delayed = count('delayed');
  const parts = [
    [count('allowed', 'delayed'), delayed > 0 ? `allowed (${delayed} delayed)` : 'allowed'],
    [count('denied'), 'denied'],
    [count('failed'), 'failed'],
  ];
  const counted = parts.filter(([number]) => number > 0);
  return counted.map(([number, verdict]) => `${number} ${verdict}`).join(', ');
}
