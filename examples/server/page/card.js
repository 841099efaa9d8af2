// The card of a lane: its settings, its figures, its chart, and its requests as a table.

import { Chart } from './chart.js';

/** The number of rows of the table. */
const ROWS = 100;

export class Card {
  #lane;
  #root;
  #isStale = true;

  /** Creates the card from the page's template. Calls `onSettings` when the settings change. */
  constructor(lane, now, onSettings) {
    this.#lane = lane;
    const template = document.getElementById('lane');
    this.#root = template.content.firstElementChild.cloneNode(true);
    this.#root.id = lane.algorithm.name;
    this.#root.setAttribute('aria-label', lane.algorithm.title);
    this.#part('title').textContent = lane.algorithm.title;
    this.#part('summary').textContent = lane.algorithm.summary;
    this.#part('caption').textContent = 'The latest requests, newest first';
    this.#part('table').setAttribute('aria-label', `Requests: ${lane.algorithm.title}`);
    this.#addParameters(onSettings);
    this.chart = new Chart(this.#part('chart'), lane, now);
    lane.addEventListener('change', () => (this.#isStale = true));
    this.#part('table').id = `${lane.algorithm.name}-requests`;
    this.#part('toggle').setAttribute('aria-controls', this.#part('table').id);
    this.#part('toggle').addEventListener('click', () => this.#toggleTable());
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
        this.#isStale = true;
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
    this.#isStale = true;
  }

  draw(now) {
    this.chart.draw(now);
    if (!this.#isStale) return;
    this.#isStale = false;
    const { totals, pending, remaining, capacity, rate, admissions, settings, algorithm, error } = this.#lane;
    const due = this.#lane.waiting(now).length;
    if (pending.size > 0) this.#isStale = true;
    this.#set('settings', algorithm.describe(settings));
    this.#set('allowed', totals.allowed);
    this.#set('denied', totals.denied);
    this.#set('delayed', totals.delayed);
    this.#set('due', due > 0 ? ` + ${due} due` : '');
    this.#set('remaining', error ? '–' : (remaining ?? '–'));
    this.#set('capacity', capacity === null ? '' : ` of ${capacity}`);
    this.#set('window', `Peak in ${rate.seconds} s`);
    this.#set('peak', admissions.peak);
    this.#set('limit', ` of ${rate.tokens}`);
    this.#part('peak').closest('div').classList.toggle('is-over', admissions.peak > rate.tokens);
    this.#set('error', error);
    this.#part('chart').setAttribute(
      'aria-label',
      `${totals.allowed} requests allowed, ${totals.delayed} of them after a delay, and ${totals.denied} denied. ` +
        `At most ${admissions.peak} tokens were admitted in ${rate.seconds} seconds, of a limit of ${rate.tokens}.`,
    );
    if (!this.#part('table').hidden) this.#fillTable();
  }

  /** Sets the text of a part, if it differs. */
  #set(name, text) {
    const part = this.#part(name);
    if (part.textContent !== String(text)) part.textContent = text;
  }

  #fillTable() {
    const rows = this.#lane.records.slice(-ROWS).reverse();
    const start = this.#lane.records[0]?.arrival;
    const cells = ({ arrival, verdict, delay, cost, remaining, retryAfter }) => [
      `${((arrival - start) / 1000).toFixed(3)} s`,
      verdict,
      verdict === 'delayed' ? `${(delay / 1000).toFixed(3)} s` : retryAfter ? `retry in ${retryAfter} s` : '',
      cost,
      remaining,
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
