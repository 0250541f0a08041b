// Plays clips, one or two, on one clock. A clip is {image, meta}: a sprite sheet, and how the frames lie on it.

const HOLD = 0.5; // seconds the last frame stays before the loop begins again, so that the seam can be seen

const ARROWS = {
  UPRIGHT: "↗", UPLEFT: "↖", DOWNRIGHT: "↘", DOWNLEFT: "↙", UP: "↑", DOWN: "↓", LEFT: "←", RIGHT: "→",
};

function actionText(meta, step) {
  const action = meta.actions[step];
  if (action === undefined) return ""; // too many for a header
  if (typeof action === "string") return action; // numbers
  const name = meta.names[action];
  if (name === undefined) return `action ${action}`;
  if (name === "NOOP") return "no action";
  const fire = name.endsWith("FIRE");
  const move = fire ? name.slice(0, -4) : name;
  if (move && !(move in ARROWS)) return name.toLowerCase();
  return `${ARROWS[move] ?? ""}${fire ? " fire" : ""}`.trim();
}

export class Player {
  constructor(views, stage, stepsPerSecond, onStep) {
    this.views = views; // [{canvas, bar, action}, …], left first; action may be missing
    this.stage = stage; // what the canvases have to fit into; null where the style sheet sizes them
    this.rate = stepsPerSecond;
    this.onStep = onStep;
    this.speed = 2;
    this.playing = true;
    this.clips = null;
    this.position = 0; // steps since the loop began, not whole
    this.last = null; // when the clock was last read, ms
    this.frame = null; // pending animation frame
    if (stage) new ResizeObserver(() => this.fit()).observe(stage);
  }

  show(clips) {
    this.clips = clips;
    this.length = Math.max(...clips.map((clip) => clip.meta.steps));
    this.views.forEach(({ canvas, bar }, i) => {
      const { width, height, steps } = clips[i].meta;
      if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
      bar.max = Math.max(1, steps - 1);
    });
    this.fit();
    this.replay();
  }

  clear() {
    this.clips = null;
    this.stop();
  }

  // The largest whole number of device pixels a game pixel can have so that both clips fit: never blurred.
  fit() {
    if (!this.clips || !this.stage) return;
    const style = getComputedStyle(this.stage);
    const count = this.views.length;
    const gaps = (parseFloat(style.columnGap) || 0) * (count - 1);
    const caption = 36;
    const width = (this.stage.clientWidth - parseFloat(style.paddingLeft) * 2 - gaps) / count;
    const height = this.stage.clientHeight - parseFloat(style.paddingTop) * 2 - caption;
    const widest = Math.max(...this.clips.map((clip) => clip.meta.width));
    const tallest = Math.max(...this.clips.map((clip) => clip.meta.height));
    const pixel = window.devicePixelRatio || 1;
    let scale = Math.floor(pixel * Math.min(width / widest, height / tallest));
    // Frames larger than the window have to shrink, and then cannot be crisp.
    scale = scale >= 1 ? scale / pixel : Math.min(width / widest, height / tallest);
    this.views.forEach(({ canvas }, i) => {
      canvas.style.width = `${this.clips[i].meta.width * scale}px`;
      canvas.style.height = `${this.clips[i].meta.height * scale}px`;
    });
  }

  play() {
    this.playing = true;
    this.run();
  }

  pause() {
    this.playing = false;
    this.stop();
  }

  replay() {
    this.position = 0;
    this.drawn = -1;
    this.draw();
    this.run();
  }

  step(by) {
    if (!this.clips) return;
    this.pause();
    const now = Math.min(Math.floor(this.position), this.length - 1);
    this.position = (now + by + this.length) % this.length;
    this.draw();
  }

  seek(step) {
    if (!this.clips) return;
    this.position = step;
    this.draw();
  }

  run() {
    this.last = null;
    if (this.playing && this.clips && this.frame === null) {
      this.frame = requestAnimationFrame((time) => this.tick(time));
    }
  }

  stop() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
  }

  tick(time) {
    this.frame = null;
    if (!this.playing || !this.clips) return;
    if (this.last !== null) {
      // A tab that was hidden resumes where it was.
      const passed = Math.min(time - this.last, 250) / 1000;
      const pace = this.rate * this.speed;
      this.position = (this.position + passed * pace) % (this.length + HOLD * pace);
    }
    this.last = time;
    this.draw();
    this.frame = requestAnimationFrame((next) => this.tick(next));
  }

  draw() {
    if (!this.clips) return;
    const step = Math.min(Math.floor(this.position), this.length - 1);
    if (step === this.drawn) return;
    this.drawn = step;
    this.views.forEach(({ canvas, bar, action }, i) => {
      const { image, meta } = this.clips[i];
      const own = Math.min(step, meta.steps - 1);
      const x = (own % meta.columns) * meta.width;
      const y = Math.floor(own / meta.columns) * meta.height;
      canvas.getContext("2d").drawImage(image, x, y, meta.width, meta.height, 0, 0, meta.width, meta.height);
      bar.value = own;
      if (action) action.textContent = actionText(meta, own);
    });
    this.onStep(step + 1, this.length);
  }
}
