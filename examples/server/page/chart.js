// The chart of a lane: above, each request as a mark; below, what was admitted and what the limit counts. Between them,
// where requests are delayed, the instants at which they proceed.

import { append, clip, COLUMN, FAR, FRESH, MARK, Placement, round, square } from './svg.js';

// The layout, in pixels. Marks stand on a line, and columns of marks are `COLUMN` apart.
const HEIGHT = 142;
const LEFT = 34;
const RIGHT = 8;
const MARKS = { top: 14, base: 58 };
const TURNS = { top: 61 };
const COUNTS = { top: 80, base: 124 };

/** The most lines that mark the edges of windows. */
const MOST_EDGES = 64;

/** The room for what moves beside the chart, in pixels: so far it moves before it is drawn anew. */
const MARGIN = 60;

export class Chart {
  #lane;
  #connection;
  /** What stands still, and what moves. Only the latter's position changes between two drawings. */
  #labels;
  #moving;
  #scroll;
  #layers = {};
  #title;
  /** Where the marks are: `{record, x, y}` in order of time. */
  #marks = [];
  #base;
  #width = 0;
  #step = 4000;
  #span = 14_000;
  #isStale = true;
  /** The instant that was drawn, and when that was by the browser's clock. */
  #drawn = -Infinity;
  #drawnAt = -Infinity;

  /** Draws `lane` in `element`, from the server's instant `now`. */
  constructor(element, lane, connection, now) {
    this.#lane = lane;
    this.#connection = connection;
    this.#base = now;
    const svg = append(element, 'svg', { width: '100%', height: HEIGHT, 'aria-hidden': true });
    this.#labels = append(svg, 'g');
    const plot = element.appendChild(Object.assign(document.createElement('div'), { className: 'plot' }));
    this.#moving = append(plot, 'svg', { height: COUNTS.base + 1, 'aria-hidden': true });
    this.#scroll = append(this.#moving, 'g');
    const layer = (name) => (this.#layers[name] = append(this.#scroll, 'path', { class: name }));
    ['edges', 'area', 'waits', 'allowed', 'delayed', 'arrived', 'denied', 'others', 'turns', 'counted'].forEach(layer);
    // The part of the area above what the algorithm promises.
    const { area, group } = clip(this.#scroll, `over-${lane.algorithm.name}`);
    this.#layers.overClip = area;
    this.#layers.over = append(group, 'path', { class: 'over' });
    // Nothing is known of an outage, so its gap covers what is below.
    ['gap', 'chosen'].forEach(layer);
    const title = (top) => {
      const text = element.appendChild(document.createElement('p'));
      text.style.top = `${top}px`;
      return text;
    };
    title(MARKS.top - 14).textContent = 'Requests';
    this.#title = title(COUNTS.top - 15);
    lane.addEventListener('change', () => (this.#isStale = true));
    new ResizeObserver(([entry]) => this.#resize(entry.contentRect.width)).observe(plot);
  }

  /** Shows this many spans of `step` milliseconds. */
  show(step, steps) {
    this.#step = step;
    this.#span = step * steps;
    this.#isStale = true;
  }

  #resize(width) {
    this.#width = Math.max(width, 1);
    this.#moving.setAttribute('width', this.#width + MARGIN);
    this.#isStale = true;
  }

  get #scale() {
    return this.#width / this.#span;
  }

  #x(at) {
    return (at - this.#base) * this.#scale;
  }

  /** Draws the state at the instant `now`. */
  draw(now) {
    if (this.#width === 0) return;
    const isStale = this.#isStale || this.#lane.pending.size > 0;
    const moved = this.#x(now) - this.#x(this.#drawn);
    if ((isStale && performance.now() - this.#drawnAt > FRESH) || moved > MARGIN || moved < 0) this.#redraw(now);
    this.#moving.style.transform = `translateX(${round(this.#x(this.#drawn) - this.#x(now))}px)`;
  }

  /** Returns the request whose mark is near a point of the element, in pixels, at the instant `now`. */
  near(x, y, now) {
    const left = x - LEFT - this.#width + this.#x(now);
    const distance = (mark) => Math.hypot(mark.x + MARK / 2 - left, mark.y + MARK / 2 - y);
    const seen = this.#marks.filter(({ record }) => record.arrival <= now);
    const nearest = seen.reduce((best, mark) => (!best || distance(mark) < distance(best) ? mark : best), null);
    return nearest && distance(nearest) < 14 ? nearest.record : null;
  }

  /** Returns the visible requests in order of time. */
  visible(now) {
    const records = this.#marks.map(({ record }) => record);
    return records.filter(({ arrival }) => arrival <= now && arrival > now - this.#span);
  }

  /** Marks a request, or none. Returns where its mark is in the element, unless it is out of sight. */
  choose(record, now) {
    const mark = this.#marks.find((mark) => mark.record === record);
    const x = mark ? mark.x + this.#width - this.#x(now) : -1;
    const isVisible = x >= 0 && x <= this.#width;
    const ring = isVisible ? `M${mark.x - 3} ${mark.y - 3}h${MARK + 6}v${MARK + 6}h${-MARK - 6}z` : '';
    if (this.#layers.chosen.getAttribute('d') !== ring) this.#layers.chosen.setAttribute('d', ring);
    return isVisible ? { x: LEFT + x, y: mark.y } : null;
  }

  #redraw(now) {
    this.#isStale = false;
    if (Math.abs(now - this.#base) > FAR) this.#base = now;
    this.#drawn = now;
    this.#drawnAt = performance.now();
    this.#scroll.setAttribute('transform', `translate(${round(this.#width - this.#x(now))} 0)`);
    const from = now - this.#span;
    this.#drawMarks(from, now);
    this.#drawCounts(from, now);
    this.#drawEdges(from, now);
    this.#drawGaps(from, now);
    this.#drawLabels();
  }

  #drawMarks(from, now) {
    const place = new Placement();
    const visible = this.#lane.records.filter((record) => (record.admitted ?? record.arrival) > from - 1000);
    const pending = this.#lane.waiting(now).filter(({ verdict }) => verdict === 'pending');
    const inOrder = [...visible, ...pending].sort((one, other) => one.arrival - other.arrival);
    const marks = inOrder.map((record) => {
      const column = Math.floor(this.#x(record.arrival) / COLUMN);
      const end = record.verdict === 'pending' ? now : (record.admitted ?? record.arrival);
      return { record, column, row: place.row(column, Math.floor(this.#x(end) / COLUMN)) };
    });
    const others = this.#lane.others.filter(({ at }) => at > from).flatMap(({ at, count }) => Array(count).fill({ at }));
    const step = Math.min(MARK + 1, (MARKS.base - MARKS.top) / place.rows);
    const size = Math.min(MARK, step);
    const paths = { allowed: '', delayed: '', arrived: '', denied: '', waits: '', turns: '', others: '' };
    this.#marks = [];
    for (const { record, column, row } of marks) {
      const [x, y] = [column * COLUMN, round(MARKS.base - (row + 1) * step)];
      this.#marks.push({ record, x, y });
      const middle = round(y + size / 2);
      if (this.#lane.algorithm.delays && record.admitted) {
        paths.turns += square(round(this.#x(record.admitted)), TURNS.top, MARK);
      }
      switch (record.verdict) {
        case 'denied':
          paths.denied += `M${x} ${y}l${MARK} ${size}M${x + MARK} ${y}l${-MARK} ${size}`;
          break;
        case 'allowed':
          paths.allowed += square(x, y, size);
          break;
        default: {
          const end = record.verdict === 'pending' ? this.#x(now) + COLUMN : this.#x(record.admitted);
          paths.arrived += square(x, y, size);
          paths.waits += `M${x + MARK} ${middle}H${round(Math.max(end, x + MARK))}`;
          if (record.verdict === 'delayed') paths.delayed += square(round(end), y, size);
        }
      }
    }
    for (const { at } of others) {
      const column = Math.floor(this.#x(at) / COLUMN);
      const [x, y] = [column * COLUMN + MARK / 2, round(MARKS.base - (place.row(column, column) + 1) * step)];
      paths.others += `M${x} ${y - 1}l3 3l-3 3l-3 -3z`;
    }
    for (const [name, path] of Object.entries(paths)) this.#layers[name].setAttribute('d', path);
  }

  #drawCounts(from, now) {
    const y = (count) => round(COUNTS.base - Math.min(count / this.#most, 1) * (COUNTS.base - COUNTS.top));
    const start = this.#x(from - 1000);
    let area = `M${round(start)} ${COUNTS.base}`;
    for (const [at, count] of this.#lane.admissions.steps(from)) {
      area += `H${round(Math.max(this.#x(at), start))}V${y(count)}`;
    }
    area += `H${round(this.#x(now + 2000))}V${COUNTS.base}Z`;
    this.#layers.area.setAttribute('d', area);
    this.#layers.over.setAttribute('d', area);
    this.#layers.overClip.setAttribute('x', round(start));
    this.#layers.overClip.setAttribute('width', this.#width * 2);
    this.#layers.overClip.setAttribute('height', y(this.#lane.most));

    let counted = '';
    const first = this.#lane.samples.findLastIndex(({ at }) => at < from - 1000);
    for (const { at, used } of this.#lane.samples.slice(Math.max(first, 0))) {
      counted += counted ? `H${round(this.#x(at))}V${y(used)}` : `M${round(this.#x(at))} ${y(used)}`;
    }
    if (counted) counted += `H${round(this.#x(now + 2000))}`;
    this.#layers.counted.setAttribute('d', counted);
  }

  #drawEdges(from, now) {
    const seconds = this.#lane.algorithm.edges?.(this.#lane.settings);
    let edges = '';
    const period = seconds * 1000;
    if (this.#span / period <= MOST_EDGES) {
      for (let edge = Math.floor(from / period) * period; edge < now + 2000; edge += period) {
        edges += `M${round(this.#x(edge))} ${MARKS.top - 4}V${COUNTS.base}`;
      }
    }
    this.#layers.edges.setAttribute('d', edges);
  }

  #drawGaps(from, now) {
    const gaps = this.#connection.between(from, now).map((outage) => {
      const [start, end] = [this.#x(Math.max(outage.from, from - 1000)), this.#x(Math.min(outage.to, now + 2000))];
      return `M${round(start)} 0H${round(end)}V${COUNTS.base + 1}H${round(start)}Z`;
    });
    this.#layers.gap.setAttribute('d', gaps.join(''));
  }

  #drawLabels() {
    this.#labels.replaceChildren();
    const right = LEFT + this.#width;
    const y = (count) => round(COUNTS.base - (count / this.#most) * (COUNTS.base - COUNTS.top));
    for (const base of [MARKS.base + 0.5, COUNTS.base + 0.5]) {
      append(this.#labels, 'path', { class: 'base', d: `M${LEFT} ${base}H${right}` });
    }
    const { rate } = this.#lane;
    this.#title.textContent = `Admitted in ${rate.seconds} s`;
    const level = y(rate.tokens);
    append(this.#labels, 'path', { class: 'limit', d: `M${LEFT} ${level}H${right}` });
    this.#label(LEFT - 6, level + 4, rate.tokens, 'end');
    this.#label(LEFT - 6, COUNTS.base + 1, '0', 'end');

    for (let ago = this.#step; ago < this.#span; ago += this.#step) {
      this.#label(right - ago * this.#scale, HEIGHT - 4, `−${round(ago / 1000)} s`, 'middle');
    }
    this.#label(right, HEIGHT - 4, 'now', 'end');
  }

  #label(x, y, text, anchor) {
    append(this.#labels, 'text', { x: round(x), y: round(y), 'text-anchor': anchor }).textContent = text;
  }

  /** The highest count that the chart has room for. */
  get #most() {
    return Math.max(this.#lane.rate.tokens * 2, this.#lane.most, this.#lane.capacity ?? 0) * 1.05;
  }
}
