// The card of a lane: its settings, its caption, its chart and mechanism, and its requests as a table.

import { Chart } from './chart.js';
import { timeOfDay } from './clock.js';
import { caption, reason } from './explain.js';
import { mechanism } from './mechanism.js';

/** The number of rows of the table. */
const ROWS = 100;

/** Text changes at most this often, in milliseconds, so that it can be read. */
export const READABLE = 200;

export class Card {
  #lane;
  #connection;
  #root;
  #mechanism;
  #writtenAt = -Infinity;
  #isTableStale = true;
  /** The request that is explained. */
  #chosen = null;

  /** Creates the card from the page's template. Calls `onSettings` when the settings change. */
  constructor(lane, connection, playback, onSettings) {
    this.#lane = lane;
    this.#connection = connection;
    const { name, title } = lane.algorithm;
    this.#root = document.getElementById('lane').content.firstElementChild.cloneNode(true);
    this.#root.id = name;
    this.#root.dataset.lane = name;
    this.#root.setAttribute('aria-label', title);
    this.#part('title').textContent = title;
    this.#part('table').setAttribute('aria-label', `Requests: ${title}`);
    this.#addParameters(onSettings);
    this.chart = new Chart(this.#part('chart'), lane, connection, playback.now());
    this.#mechanism = mechanism(this.#part('mechanism'), lane, playback.now());
    lane.addEventListener('change', () => (this.#isTableStale = true));
    this.#part('table').id = `${name}-requests`;
    this.#part('toggle').setAttribute('aria-controls', this.#part('table').id);
    this.#part('toggle').addEventListener('click', () => this.#toggleTable());
    this.#explainRequests(playback);
  }

  get element() {
    return this.#root;
  }

  #part(name) {
    return this.#root.querySelector(`[data-part="${name}"]`);
  }

  #addParameters(onSettings) {
    for (const parameter of this.#lane.algorithm.parameters) {
      const label = document.createElement('label');
      const input = parameter.choices ? select(parameter) : number(parameter);
      input.name = parameter.name;
      input.value = this.#lane.settings[parameter.name];
      input.addEventListener('change', () => {
        if (!input.reportValidity()) return;
        const value = parameter.choices ? input.value : input.valueAsNumber;
        onSettings({ ...this.#lane.settings, [parameter.name]: value });
      });
      label.append(parameter.unit ? `${parameter.label}, ${parameter.unit}` : parameter.label, input);
      this.#part('parameters').append(label);
    }
    this.#part('hint').textContent = this.#lane.algorithm.hint ?? '';
  }

  #toggleTable() {
    const table = this.#part('table');
    table.hidden = !table.hidden;
    this.#part('toggle').setAttribute('aria-expanded', !table.hidden);
    this.#isTableStale = true;
  }

  /** Lets requests be pointed at, tapped, or chosen by the arrow keys. */
  #explainRequests(playback) {
    const chart = this.#part('chart');
    const point = ({ clientX, clientY }) => {
      const { left, top } = chart.getBoundingClientRect();
      this.#chosen = this.chart.near(clientX - left, clientY - top, playback.now());
    };
    chart.addEventListener('pointermove', point);
    chart.addEventListener('pointerdown', point);
    chart.addEventListener('pointerleave', ({ pointerType }) => {
      if (pointerType === 'mouse') this.#chosen = null;
    });
    chart.addEventListener('focus', () => (this.#chosen ??= this.chart.visible(playback.now()).at(-1) ?? null));
    chart.addEventListener('blur', () => (this.#chosen = null));
    chart.addEventListener('keydown', (event) => {
      const visible = this.chart.visible(playback.now());
      const index = visible.indexOf(this.#chosen);
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: visible.length - 1 }[event.key];
      if (event.key === 'Escape') this.#chosen = null;
      if (to === undefined) return;
      event.preventDefault();
      this.#chosen = visible[Math.min(Math.max(to, 0), visible.length - 1)] ?? null;
    });
  }

  /** Draws the state at the instant `now`. */
  draw(now) {
    this.chart.draw(now);
    this.#mechanism.draw(now);
    this.#drawReason(now);
    if (Math.abs(now - this.#writtenAt) < READABLE) return;
    this.#writtenAt = now;
    const lane = this.#lane;
    const totals = lane.totals(now);
    const peak = lane.admissions.peak(now);
    this.#set('settings', lane.algorithm.describe(lane.settings));
    this.#set('caption', caption(lane, now));
    this.#set('level', this.#level(now));
    this.#set('error', lane.error);
    const { tokens, seconds } = lane.rate;
    const label =
      `${totals.allowed} requests allowed, ${totals.delayed} of them after a delay, and ${totals.denied} denied. ` +
      `At most ${peak} tokens were admitted in ${seconds} seconds, of a limit of ${tokens}. Arrow keys explain requests.`;
    const chart = this.#part('chart');
    if (chart.getAttribute('aria-label') !== label) chart.setAttribute('aria-label', label);
    if (!this.#part('table').hidden && this.#isTableStale) this.#fillTable();
  }

  /** Says what remains, and since when that is not known any more. */
  #level(now) {
    const { capacity, error } = this.#lane;
    const sample = this.#lane.sample(now);
    if (!sample || error) return '–';
    const outage = this.#connection.between(now, now + 1)[0];
    return `${capacity - sample.used} of ${capacity} left${outage ? ` at ${timeOfDay(outage.from)}` : ''}`;
  }

  #drawReason(now) {
    const why = this.#part('why');
    const place = this.chart.choose(this.#chosen, now);
    why.hidden = !place;
    if (!place) return;
    this.#set('why', reason(this.#lane, this.#chosen, now));
    const width = why.parentElement.clientWidth;
    why.style.left = `${Math.max(0, Math.min(place.x - why.offsetWidth / 2, width - why.offsetWidth))}px`;
    why.style.top = `${place.y + 12}px`;
  }

  /** Sets the text of a part, if it differs. */
  #set(name, text) {
    const part = this.#part(name);
    if (part.textContent !== text) part.textContent = text;
  }

  #fillTable() {
    this.#isTableStale = false;
    const rows = this.#lane.records.slice(-ROWS).reverse();
    const cells = (record) => [
      `${timeOfDay(record.arrival)}.${String(Math.floor(record.arrival) % 1000).padStart(3, '0')}`,
      reason(this.#lane, record, Infinity),
      record.cost,
      record.remaining,
    ];
    const row = (record) => {
      const element = document.createElement('tr');
      element.append(...cells(record).map((text) => Object.assign(document.createElement('td'), { textContent: text })));
      return element;
    };
    this.#part('rows').replaceChildren(...rows.map(row));
  }
}

function number({ min, max, step }) {
  const input = Object.assign(document.createElement('input'), { type: 'number', min, max, step, required: true });
  input.inputMode = 'decimal';
  return input;
}

function select({ choices }) {
  const input = document.createElement('select');
  input.append(...choices.map((choice) => new Option(choice, choice)));
  return input;
}
