// The pairs that lie ahead, with their clips fetched before they are needed: files of the whole batch, decoded
// pictures (some 7 MB each) of the first few only.

const DECODED = 3; // pairs

export class Deck {
  constructor() {
    this.offers = [];
    this.clips = new Map(); // clip id → {file: Promise<{blob, meta}>, image: Promise<ImageBitmap> | null, ready}
  }

  get current() {
    return this.offers[0];
  }

  set(offers) {
    this.offers = offers;
    this.prefetch();
  }

  drop(id) {
    this.set(this.offers.filter((offer) => offer.id !== id));
  }

  // Starts what is missing, lets go of what is no longer ahead. In order, so that the next pair comes first.
  prefetch() {
    const wanted = new Set();
    this.offers.forEach((offer, at) => {
      for (const id of [offer.clip1, offer.clip2]) {
        wanted.add(id);
        let clip = this.clips.get(id);
        if (!clip) {
          clip = { file: fetchClip(id), image: null, ready: null, decoded: at };
          clip.file.catch(() => {});
          this.clips.set(id, clip);
        }
        if (at < DECODED && !clip.image) {
          const entry = clip;
          entry.image = entry.file.then(async ({ blob, meta }) => {
            const image = await createImageBitmap(blob);
            if (this.clips.get(id) !== entry) image.close();
            else entry.ready = { image, meta };
          });
          entry.image.catch(() => {});
        }
      }
    });
    for (const [id, clip] of this.clips) {
      if (wanted.has(id)) continue;
      this.clips.delete(id);
      clip.ready?.image.close();
    }
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

async function fetchClip(id) {
  const response = await fetch(`/clip/${id}.png`);
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw Object.assign(new Error(said.detail ?? said.error ?? "A clip did not come."), { status: response.status });
  }
  return { blob: await response.blob(), meta: JSON.parse(response.headers.get("Clip-Meta")) };
}
