// The opening story: the same requests for each algorithm, across the edge of a window and at twice the rate.

/** The instants of the story's acts, in milliseconds after the edge of a window. */
const [FIRST, SECOND, STEADY, END] = [-600, 400, 2200, 7600];

/** How long the page can be looked at before the first request, in milliseconds. */
const LEAD = 800;

export class Story {
  #traffic;
  #clock;
  #playback;
  #aborter = null;
  /** What is said from which instant: `{at, text}` in order of time. */
  #lines = [];
  #end = Infinity;
  #conclude;
  /** Whether the page says what the story says. */
  isSpeaking = false;

  /** Calls `conclude` for its last sentence. */
  constructor(traffic, clock, playback, conclude) {
    this.#conclude = conclude;
    this.#traffic = traffic;
    this.#clock = clock;
    this.#playback = playback;
  }

  /** Whether requests of the story are still to be sent. */
  get isSending() {
    return this.#aborter !== null;
  }

  /** Whether the story has been told to its end, so that it can be replayed. */
  get isTold() {
    return this.#lines.length > 0 && this.#clock.now() >= this.#end;
  }

  /** Sends the requests of the story to limits that allow `tokens` in `seconds`. */
  async tell({ tokens, seconds }) {
    this.isSpeaking = true;
    this.#aborter = new AbortController();
    const { signal } = this.#aborter;
    const begun = this.#clock.now();
    const edge = Math.ceil((begun + LEAD - FIRST) / (seconds * 1000)) * seconds * 1000;
    this.#end = edge + END;
    const line = (at, text) => ({ at, text });
    this.#lines = [
      line(begun, `Each limit allows ${tokens} requests in ${seconds} s. A client sends ${tokens} just before the end of a window …`),
      line(edge + FIRST, `${tokens} requests, just before a window ends …`),
      line(edge + SECOND, `… and ${tokens} more, a second later. Who lets them pass?`),
      line(edge + STEADY, `Now twice the rate: ${rounded((2 * tokens) / seconds)} requests a second.`),
    ];
    for (const at of [FIRST, SECOND]) {
      await this.#traffic.until(edge + at, signal);
      if (signal.aborted) return;
      this.#traffic.send(tokens, 1);
    }
    await this.#traffic.until(edge + STEADY, signal);
    const last = setTimeout(() => this.#aborter?.abort(), END - STEADY - 2200);
    await this.#traffic.steady(() => ({ perSecond: (2 * tokens) / seconds, cost: 1 }), signal);
    clearTimeout(last);
    this.#aborter = null;
  }

  /** Stops sending, and forgets what was not told. */
  stop() {
    if (!this.isSending) return;
    this.#aborter.abort();
    this.#aborter = null;
    this.#lines = [];
  }

  /** Shows the story again, from its beginning. Nothing is sent. */
  replay() {
    this.isSpeaking = true;
    this.#playback.live();
    this.#playback.showFrom(this.#lines[0].at);
  }

  /** Returns what is said at the instant `now`, if that is in the story. */
  line(now) {
    return this.isOver(now) ? this.#conclude() : this.#lines.findLast(({ at }) => at <= now)?.text;
  }

  /** Returns whether `now` is after the end of the story. */
  isOver(now) {
    return now >= this.#end;
  }
}

const rounded = (number) => Number(number.toPrecision(2));
