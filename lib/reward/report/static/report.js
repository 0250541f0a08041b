// The clips of a report. The player and the curve of the labelling page come before this in the same script.

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

class ReportClip {
  constructor(figure) {
    const find = (selector) => figure.querySelector(selector);
    const playback = JSON.parse(figure.dataset.clip);
    const { curve, every, others, rate, scale, scores } = playback;
    this.button = find("button");
    this.visible = false;
    const slider = find("input");
    let held = false; // it played until the curve was pressed
    this.curve = new Curve(find("svg"), {
      onHold: () => {
        held = this.player.playing;
        this.play(false);
      },
      onSeek: (step) => this.player.seek(step / every),
      onRelease: () => this.play(held),
    });
    this.player = new Player([{ canvas: find("canvas"), bar: slider }], null, rate, (frame) => {
      const step = (frame - 1) * every;
      const value = scale[0] < 0 ? signed(curve[step]) : curve[step].toFixed(2);
      const scored = scores?.[step] ? `, score ${signed(scores[step], 0)}` : "";
      find("output").textContent = `step ${step + 1} of ${curve.length}: ${value}${scored}`;
      this.curve.at(step);
    });
    this.player.speed = 1;
    this.play(!still);
    this.button.addEventListener("click", () => this.play(!this.player.playing));
    slider.addEventListener("input", () => {
      this.play(false);
      this.player.seek(Number(slider.value));
    });
    this.curve.show(curve, { others, scale });
    const image = find("img");
    image.decode().then(() => {
      this.player.show([{ image, meta: playback }]);
      // Clips out of sight rest.
      new IntersectionObserver(([entry]) => {
        this.visible = entry.isIntersecting;
        this.rest();
      }).observe(figure);
    });
  }

  play(on) {
    this.player.playing = on;
    this.button.textContent = on ? "Pause" : "Play";
    this.rest();
  }

  rest() {
    if (this.player.playing && this.visible) this.player.run();
    else this.player.stop();
  }
}

const clips = Array.from(document.querySelectorAll(".clip"), (figure) => new ReportClip(figure));
const all = document.getElementById("all");
let playing = !still;
const nameAll = () => {
  all.textContent = playing ? "Pause all clips" : "Play all clips";
};
nameAll();
all.hidden = clips.length === 0;
all.addEventListener("click", () => {
  playing = !playing;
  nameAll();
  for (const clip of clips) clip.play(playing);
});
