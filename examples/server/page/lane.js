// One algorithm with its settings: sends requests to its route, and records what the server decides.

import { Admissions } from './admissions.js';

/** The number of requests and of samples that are kept. */
const MOST = 2000;

/** The pauses between two requests that only ask what remains, of a limit that is in use and of others, in milliseconds. */
const [SHORT_PAUSE, LONG_PAUSE] = [100, 250];

/** The server hangs if it answers nothing, although no limit delays the request, for so many milliseconds. */
const PATIENCE = 3000;

/** A request counts as waiting after so many milliseconds. */
const WAITING = 120;

const OPTIONS = { cache: 'no-store', headers: { accept: 'application/json' } };

/** Returns a signal that also ends a request when the server hangs. */
const patient = (signal) => AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);

/** Rounds to microseconds, so that requests can be exactly a period apart. */
const milliseconds = (seconds) => Math.round(seconds * 1e6) / 1000;

/** Dispatches `change` when there is something new to show. */
export class Lane extends EventTarget {
  #clock;
  #connection;
  #aborter = new AbortController();
  #timer;
  /** The browser's time of the next request that only asks. */
  #due = Infinity;
  /** The browser's time of the last response. */
  #answered = -Infinity;
  /** The requests that are no longer kept, by verdict. */
  #dropped;
  /** The tokens that the lane's own requests were charged so far. */
  #own;
  /** `{at, level, own}` when the requests of others were last looked for. */
  #compared;

  constructor(algorithm, settings, clock, connection) {
    super();
    this.algorithm = algorithm;
    this.settings = settings;
    this.#clock = clock;
    this.#connection = connection;
    this.#clear();
  }

  #clear() {
    this.records = [];
    this.pending = new Set();
    /** What the limit counts: `{at, used}` in order of time. */
    this.samples = [];
    /** What the limit has counted for others: `{at, count}` in order of time. */
    this.others = [];
    this.capacity = null;
    this.error = '';
    this.response = null;
    this.admissions = new Admissions(this.rate.seconds * 1000);
    this.#dropped = { allowed: 0, delayed: 0, denied: 0 };
    this.#own = 0;
    this.#compared = null;
  }

  /** The rate that the algorithm means to allow. */
  get rate() {
    return this.algorithm.rate(this.settings);
  }

  /** The tokens in the span of the rate above which the chart is red. */
  get most() {
    return this.algorithm.most(this.settings);
  }

  get isClosed() {
    return this.#aborter.signal.aborted;
  }

  /** Returns the requests that wait at the instant `now`. */
  waiting(now) {
    const delayed = this.records.filter(({ arrival, delay, admitted }) => delay > 0 && arrival <= now && admitted > now);
    return [...delayed, ...[...this.pending].filter(({ sent }) => now - sent > WAITING)];
  }

  /** Returns how many requests had each verdict until `now`. Those that are delayed are allowed, too. */
  totals(now) {
    const totals = { ...this.#dropped };
    for (const { arrival, verdict } of this.records) if (arrival <= now) totals[verdict] += 1;
    return { ...totals, allowed: totals.allowed + totals.delayed };
  }

  /** Returns the sample that was valid at `now`, if there is one. */
  sample(now) {
    return this.samples.findLast(({ at }) => at <= now);
  }

  /** Returns the path of a request, whose query has the settings. */
  path(cost) {
    const query = new URLSearchParams(this.settings);
    if (cost !== undefined) query.set('cost', cost);
    return `/${this.algorithm.name}?${query}`;
  }

  /** Sends a request, and resolves when its response is recorded. */
  async send(cost) {
    const record = { sent: this.#clock.now(), arrival: this.#clock.now(), cost, verdict: 'pending' };
    const { signal } = this.#aborter;
    this.pending.add(record);
    this.#changed();
    const answer = await this.#request(this.path(cost), signal);
    this.pending.delete(record);
    if (!answer) {
      record.verdict = signal.aborted ? 'aborted' : 'failed';
      return record;
    }
    this.response = answer;
    this.#record(record, answer);
    this.#changed();
    return record;
  }

  #record(record, { status, body }) {
    if (status === 429) {
      record.arrival = milliseconds(body.at_seconds);
      record.verdict = 'denied';
      record.wait = body.retry_after_seconds === null ? null : milliseconds(body.retry_after_seconds);
    } else if (status === 200) {
      record.arrival = milliseconds(body.at_seconds);
      record.delay = milliseconds(body.delay_seconds);
      record.admitted = milliseconds(body.at_seconds + body.delay_seconds);
      record.verdict = record.delay > 0 ? 'delayed' : 'allowed';
      this.admissions.add(record.admitted, record.cost);
      this.#own += record.cost;
    } else {
      record.verdict = 'failed';
      return;
    }
    record.remaining = body.remaining;
    this.records.push(record);
    if (this.records.length > MOST) this.#dropped[this.records.shift().verdict] += 1;
  }

  /** Asks what remains, at a cost of 0, now and again: others may use the same limit. */
  async peek() {
    this.#due = Infinity;
    const { signal } = this.#aborter;
    const answer = await this.#request(this.path(0), patient(signal));
    // Invalid settings stay invalid.
    if (signal.aborted || answer?.status === 400) return;
    if (answer?.status === 200) this.#findOthers(answer.body);
    this.#peekIn(this.samples.at(-1)?.used > 0 ? SHORT_PAUSE : LONG_PAUSE);
  }

  /** Asks after a pause, unless that is done earlier anyway. */
  #peekIn(pause) {
    const due = this.#clock.browserTime() + pause;
    if (this.#due <= due) return;
    clearTimeout(this.#timer);
    this.#due = due;
    this.#timer = setTimeout(() => {
      this.#due = Infinity;
      if (document.hidden) this.#peekIn(LONG_PAUSE);
      else this.peek();
    }, pause);
  }

  /** Makes the server forget the requests of this client, and starts the record over. Returns whether it answers. */
  async forget() {
    this.#aborter.abort();
    this.#aborter = new AbortController();
    clearTimeout(this.#timer);
    this.#clear();
    const answer = await this.#request(this.path(), patient(this.#aborter.signal), 'DELETE');
    await this.peek();
    return answer?.status === 204;
  }

  /** Starts over with other settings. */
  async change(settings) {
    this.settings = settings;
    await this.forget();
  }

  /** Stops all requests. */
  close() {
    this.#aborter.abort();
    clearTimeout(this.#timer);
  }

  /** Returns the response, or nothing if the request was aborted or the server does not decide it. */
  async #request(path, signal, method = 'GET') {
    const [sent, at] = [this.#clock.browserTime(), this.#clock.now()];
    const response = await this.#fetch(path, signal, method);
    if (!response || signal.aborted) return null;
    const { status, statusText, headers, text, received } = response;
    if (status >= 500) {
      this.#fail(`The server answers ${status}: its store fails.`);
      return null;
    }
    const body = status === 200 || status === 429 ? JSON.parse(text) : null;
    if (status === 200) this.#clock.observe(sent, received, milliseconds(body.at_seconds));
    this.#connection.answered(at);
    this.error = status === 400 ? text.trim() : '';
    if (body) this.#sample(headers, milliseconds(body.at_seconds));
    this.#changed();
    return { status, statusText, headers, text, body, method, path };
  }

  async #fetch(path, signal, method) {
    try {
      const response = await fetch(path, { ...OPTIONS, method, signal });
      const { status, statusText, headers } = response;
      const received = this.#clock.browserTime();
      this.#answered = received;
      return { status, statusText, headers, received, text: await response.text() };
    } catch (error) {
      // The browser sends few requests at a time, so this one may have waited for others.
      const isLate = this.#clock.browserTime() - this.#answered < PATIENCE;
      if (error.name === 'AbortError' || (error.name === 'TimeoutError' && isLate)) return null;
      const hangs = error.name === 'TimeoutError';
      this.#fail(hangs ? `No answer for ${PATIENCE / 1000} s: the server hangs.` : 'The server cannot be reached.', hangs);
      return null;
    }
  }

  #fail(text, mayAnswer = false) {
    this.#connection.failed(text);
    if (!mayAnswer) this.pending.clear();
    this.#changed();
  }

  /** Learns from the headers what remains, which any response tells. */
  #sample(headers, at) {
    const remaining = /;r=(\d+)/.exec(headers.get('ratelimit'));
    const quota = /;q=(\d+)/.exec(headers.get('ratelimit-policy'));
    if (!remaining || !quota) return;
    const [last, before] = [this.samples.at(-1), this.samples.at(-2)];
    // A response that was delayed describes an instant long ago.
    if (last && last.at > at) return;
    this.capacity = Number(quota[1]);
    const used = this.capacity - Number(remaining[1]);
    if (before?.used === used && last.used === used) last.at = at;
    else this.samples.push({ at, used });
    if (this.samples.length > MOST) this.samples.shift();
    if (used > 0) this.#peekIn(SHORT_PAUSE);
  }

  /** Compares what the limit counts with what is known. While requests are on their way, that is too little. */
  #findOthers({ at_seconds, remaining, reset_after_seconds }) {
    const [at, { algorithm, settings, rate }] = [milliseconds(at_seconds), this];
    if (this.pending.size > 0 || this.records.at(-1)?.arrival > at) return;
    const used = this.capacity - remaining;
    const isContinuous = !algorithm.frames && settings.refill !== 'interval';
    const level = isContinuous ? (reset_after_seconds * rate.tokens) / rate.seconds : used;
    const last = this.#compared ?? { at, level, own: this.#own };
    this.#compared = { at, level, own: this.#own };
    const drained = isContinuous ? ((at - last.at) / 1000) * (rate.tokens / rate.seconds) : 0;
    const known = algorithm.frames
      ? algorithm.frames(settings, at).reduce((sum, frame) => sum + Math.ceil(this.#counted(frame) * frame.weight), 0)
      : Math.max(last.level - drained, 0) + this.#own - last.own;
    // A part of what others were charged has come back already.
    const count = Math.ceil(level - known - 0.1);
    if (count > 0) this.others.push({ at, count });
    if (this.others.length > MOST) this.others.shift();
  }

  /** Returns the tokens that are known to be admitted in a span. */
  #counted({ from, to }) {
    const others = this.others.filter(({ at }) => at > from && at <= to);
    return this.admissions.between(from, to) + others.reduce((sum, { count }) => sum + count, 0);
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}
