// Memory over time, with a brush.

import { bytesText, countText, timeText } from './text.js';

const AXIS = 22;
/** Width in pixels above which letters are larger. */
const LARGE_FROM = 2400;

/** Texts for files of other tools that do not hold all times. */
export const ABSENT = {
  allocations: 'Allocations over time: this file does not say what was freed, and so not what was held',
  none: 'This file has sums and no times: there is no curve to draw, and no range to choose',
};

export class Timeline {
  constructor({ canvas, content, onBrush }) {
    Object.assign(this, { canvas, onBrush });
    this.context = canvas.getContext('2d', { alpha: false });
    this.load(content);
    canvas.addEventListener('pointerdown', (event) => this.press(event));
    canvas.addEventListener('pointermove', (event) => this.move(event));
    canvas.addEventListener('pointerup', (event) => this.release(event));
    canvas.addEventListener('pointercancel', () => (this.pressed = null));
    canvas.addEventListener('dblclick', () => this.brush(null));
    canvas.addEventListener('keydown', (event) => this.key(event));
  }

  /** Loads another recording, or the same one later. */
  load(content) {
    this.content = content;
    this.most = content.column('bin_most_bytes');
    this.last = content.column('bin_last_bytes');
    this.residentTimes = content.column('resident_nanos');
    this.resident = content.column('resident_bytes');
    this.end = Math.max(1, content.recording.duration_nanos);
    // A text replaces a curve that a file of another tool does not hold.
    this.times = content.recording.times;
    this.top = 1;
    if (this.times === 'allocations') this.most = content.column('bin_allocations');
    for (const bytes of this.most) this.top = Math.max(this.top, bytes);
    // Room for the text above the curve.
    if (this.times === 'allocations') this.top *= 1.2;
    for (const bytes of this.resident) this.top = Math.max(this.top, bytes);
    this.range = null;
  }

  resize() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.scale = scale;
    this.paint = null;
    this.draw();
  }

  theme() {
    const style = getComputedStyle(this.canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.paint = {
      page: colour('--panel'), text: colour('--faint'), area: colour('--area'), resident: colour('--resident'),
      peak: colour('--peak'), mark: colour('--mark'), shade: colour('--shade'), edge: colour('--accent'),
    };
  }

  font(pixels) {
    return `${this.width > LARGE_FROM ? pixels + 4 : pixels}px system-ui, sans-serif`;
  }

  x(nanos) {
    return (nanos / this.end) * this.width;
  }

  y(bytes) {
    return (this.height - AXIS) * (1 - (bytes / this.top) * 0.92);
  }

  draw() {
    if (!this.width) return;
    if (!this.paint) this.theme();
    const { context, paint, width, height, content } = this;
    const bottom = height - AXIS;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.fillStyle = paint.page;
    context.fillRect(0, 0, width, height);
    context.fillStyle = paint.area;
    context.beginPath();
    context.moveTo(0, bottom);
    for (let bin = 0; bin < this.most.length; bin++) {
      context.lineTo(this.x(bin * content.bin_nanos), this.y(this.most[bin]));
      context.lineTo(Math.min(width, this.x((bin + 1) * content.bin_nanos)), this.y(this.most[bin]));
    }
    context.lineTo(width, bottom);
    context.fill();
    if (this.resident.length) {
      context.strokeStyle = paint.resident;
      context.lineWidth = 1.5;
      context.beginPath();
      for (let i = 0; i < this.resident.length; i++) context.lineTo(this.x(this.residentTimes[i]), this.y(this.resident[i]));
      context.stroke();
    }
    context.fillStyle = paint.mark;
    for (const mark of content.marks) context.fillRect(this.x(mark.nanos) - 0.5, 0, 1, bottom);
    if (this.range) this.drawRange(bottom);
    if (this.times === 'all') this.drawPeak();
    else this.drawAbsence();
    if (this.times !== 'none') this.drawAxis(bottom);
  }

  /** Writes why there is no curve. */
  drawAbsence() {
    const { context, width, height } = this;
    context.fillStyle = this.paint.text;
    context.font = this.font(13);
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.fillText(ABSENT[this.times], width / 2, this.times === 'none' ? height / 2 : 12, width - 8);
  }

  drawPeak() {
    const { totals } = this.content;
    const x = this.x(totals.peak_nanos);
    const y = this.y(totals.peak_bytes_of_all);
    const { context } = this;
    context.fillStyle = this.paint.peak;
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fill();
    context.font = this.font(12);
    context.textBaseline = 'middle';
    const isRight = x > this.width * 0.6;
    context.textAlign = isRight ? 'right' : 'left';
    context.fillText(`peak ${bytesText(totals.peak_bytes_of_all)}`, x + (isRight ? -8 : 8), Math.max(8, y));
  }

  drawAxis(bottom) {
    const { context, paint } = this;
    context.fillStyle = paint.text;
    context.font = this.font(11);
    context.textBaseline = 'bottom';
    const steps = Math.max(1, Math.min(10, Math.floor(this.width / 110)));
    for (let step = 0; step <= steps; step++) {
      const nanos = (this.end * step) / steps;
      context.textAlign = step === 0 ? 'left' : step === steps ? 'right' : 'center';
      context.fillText(step ? timeText(nanos) : '0', this.x(nanos), this.height - 2);
      context.fillRect(this.x(nanos) - (step === steps ? 1 : 0), bottom, 1, 3);
    }
  }

  drawRange(bottom) {
    const { context, paint } = this;
    const from = this.x(this.range[0] * this.content.slices.nanos);
    const to = Math.min(this.width, this.x(this.range[1] * this.content.slices.nanos));
    context.fillStyle = paint.shade;
    context.fillRect(0, 0, from, bottom);
    context.fillRect(to, 0, this.width - to, bottom);
    context.fillStyle = paint.edge;
    context.fillRect(from - 1, 0, 2, bottom);
    context.fillRect(to - 1, 0, 2, bottom);
  }

  slice(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return Math.min(this.content.slices.count - 1, Math.floor((share * this.end) / this.content.slices.nanos));
  }

  press(event) {
    if (this.times === 'none') return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed = { x: event.clientX, slice: this.slice(event), isBrush: false };
  }

  move(event) {
    if (!this.pressed) {
      this.report(event);
      return;
    }
    if (Math.abs(event.clientX - this.pressed.x) < 4 && !this.pressed.isBrush) return;
    this.pressed.isBrush = true;
    const slice = this.slice(event);
    this.brush([Math.min(slice, this.pressed.slice), Math.max(slice, this.pressed.slice) + 1]);
  }

  release() {
    // A click without a drag removes the brush.
    if (this.pressed && !this.pressed.isBrush) this.brush(null);
    this.pressed = null;
  }

  report(event) {
    const box = this.canvas.getBoundingClientRect();
    const nanos = ((event.clientX - box.left) / box.width) * this.end;
    const bin = Math.min(this.most.length - 1, Math.floor(nanos / this.content.bin_nanos));
    const near = this.content.marks.filter((mark) => Math.abs(this.x(mark.nanos) - (event.clientX - box.left)) < 3);
    const marks = near.slice(0, 5).map((mark) => `\nmark: ${mark.text}`).join('');
    const value = this.most[bin] || 0;
    const reported = this.times === 'all' ? `at most ${bytesText(value)}` : `${countText(value)} allocations`;
    const title = this.times === 'none' ? '' : `${timeText(Math.max(0, nanos))}: ${reported}${marks}`;
    if (this.canvas.title !== title) this.canvas.title = title;
  }

  brush(range) {
    const isSame = String(range) === String(this.range);
    this.range = range;
    this.draw();
    if (!isSame) this.onBrush(range);
  }

  key(event) {
    if (this.times === 'none') return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const count = this.content.slices.count;
    if (event.key === 'Escape') this.brush(null);
    else if (step) {
      const [from, to] = this.range || [0, count];
      // With Shift the end moves alone, with Alt the start; without, the whole stretch.
      const moved = event.shiftKey ? [from, to + step] : event.altKey ? [from + step, to] : [from + step, to + step];
      if (moved[0] >= 0 && moved[1] <= count && moved[0] < moved[1]) this.brush(moved);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
