// The pairs that lie ahead, with their clips fetched before they are needed: files of the whole batch, decoded
// pictures (some 7 MB each) of the first few only.

import { refusal } from "./outbox.js";

const DECODED = 3; // pairs
const RECENT = 8; // answered pairs whose files are kept, so that an undo works without the server too

// How the deck gets clips; texts.js has the same for answers.
export const CLIPS = {
  async fetch(id) {
    const response = await fetch(`/clip/${id}.png`);
    if (!response.ok) throw await refusal(response);
    return { blob: await response.blob(), meta: JSON.parse(response.headers.get("Clip-Meta")) };
  },
  decode: async ({ blob, meta }) => ({ image: await createImageBitmap(blob), meta }),
  close: ({ image }) => image.close(),
};

export class Deck {
  constructor(media = CLIPS) {
    this.media = media;
    this.offers = [];
    this.recent = [];
    this.clips = new Map(); // clip id → {file: Promise, image: Promise | null, ready: decoded | null}
  }

  get current() {
    return this.offers[0];
  }

  set(offers) {
    this.offers = offers;
    this.prefetch();
  }

  drop(id) {
    this.recent = [...this.recent, ...this.offers.filter((offer) => offer.id === id)].slice(-RECENT);
    this.set(this.offers.filter((offer) => offer.id !== id));
  }

  // Starts what is missing, lets go of what is no longer ahead. In order, so that the next pair comes first.
  prefetch() {
    const wanted = new Set();
    const decoded = new Set();
    for (const { clip1, clip2 } of this.offers.slice(0, DECODED)) decoded.add(clip1).add(clip2);
    for (const offer of [...this.offers, ...this.recent]) {
      for (const id of [offer.clip1, offer.clip2]) {
        wanted.add(id);
        if (!this.clips.has(id)) {
          const file = this.media.fetch(id);
          file.catch(() => {});
          this.clips.set(id, { file, image: null, ready: null });
        }
        if (decoded.has(id)) this.decode(this.clips.get(id));
      }
    }
    for (const [id, clip] of this.clips) {
      if (!decoded.has(id) && clip.image) {
        if (clip.ready) this.media.close(clip.ready);
        Object.assign(clip, { image: null, ready: null });
      }
      if (!wanted.has(id)) this.clips.delete(id);
    }
  }

  decode(clip) {
    if (clip.image) return;
    const decoding = clip.file.then(async (file) => {
      const decoded = await this.media.decode(file);
      if (clip.image === decoding) clip.ready = decoded;
      else this.media.close(decoded);
    });
    clip.image = decoding;
    decoding.catch(() => {});
  }

  // Both clips of an offer, left first, or null while they are on their way.
  ready(offer) {
    const clips = sides(offer).map((id) => this.clips.get(id)?.ready);
    return clips.every(Boolean) ? clips : null;
  }

  // Resolves when both clips can be shown; rejects when one cannot.
  load(offer) {
    this.prefetch();
    return Promise.all(sides(offer).map((id) => this.clips.get(id).image));
  }

  // Forgets clips that failed to come, so that they are asked for again.
  retry(offer) {
    for (const id of sides(offer)) if (!this.clips.get(id)?.ready) this.clips.delete(id);
  }
}

export function sides(offer) {
  return offer.left === 1 ? [offer.clip1, offer.clip2] : [offer.clip2, offer.clip1];
}
