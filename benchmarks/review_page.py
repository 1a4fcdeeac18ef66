"""How fast the review page of 5,000 suspects out of 100,000 samples is, and how long their neighbours take to find.

python benchmarks/review_page.py       # needs pip install vri[dev], and Chromium (its path in CHROMIUM)

Every action is timed from its start until its frame is drawn; the median of several. Neighbours are timed by the
processor.
"""

import io
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import sync_playwright

from vri.cleaning.context import nearest
from vri.cleaning.report import QUALITY_BINS, Neighbour, Summary, Suspect, write_report

SAMPLES, COUNT, NAMED, FEATURES = 100_000, 5000, 4000, 512
CLASSES = [f"class {i}" for i in range(10)]
ACTIONS = {  # what a person does; `i` counts
    "key": "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'kad'[i % 3], bubbles: true }))",
    "slider": "byId('reach').value = 4900 - 400 * i; byId('reach').dispatchEvent(new Event('input'))",
    "order": "byId('order').selectedIndex = (i + 1) % 5; byId('order').dispatchEvent(new Event('input'))",
    "search": "byId('filter-words').value = '12345'.slice(0, i % 5); byId('filters').dispatchEvent(new Event('input'))",
    "view": "setView(['grid', 'pairs', 'cards'][i % 3])",
    "many": "i % 2 ? undo() : decideMany(list.shown.filter(isOpen), 'accept')",
    "details": "i % 2 ? byId('details').close() : view(list.current)",
}
TIME = """async () => {
  const times = [];
  for (let i = 0; i < 12; i += 1) {
    const start = performance.now();
    ACTION;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))));
    times.push(performance.now() - start);
  }
  return times;
}"""


def picture(seed: int, side: int) -> bytes:
    """About 3 kB for 54 pixels, as a photo of 160 pixels has."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(content, "JPEG")
    return content.getvalue()


def write(path: Path) -> None:
    """A page of pictures, with four neighbours each."""
    pictures = [picture(seed, 54) for seed in range(20)]
    near = [Neighbour(f"near/{i}.jpg", CLASSES[i % 10], image=picture(i, 24)) for i in range(200)]
    summary = Summary(
        source="photos",
        classes=CLASSES,
        samples=SAMPLES,
        trusted=0,
        issues=NAMED,
        noise_rate=0.1,
        noise_interval=(0.08, 0.12),
        transition_matrix=np.eye(10).tolist(),
        pair_counts=(np.ones((10, 10), int) - np.eye(10, dtype=int)).tolist(),
        quality_counts=[1] * QUALITY_BINS,
        threshold=0.5,
        accuracy_before=None,
        accuracy_after=None,
        accuracy_on="",
        version="",
        command="",
    )
    suspects = (
        Suspect(
            *(f"photos/{i:05d}.jpg", CLASSES[i % 10], CLASSES[(i + 1 + i // 3 % 9) % 10]),
            *(i / COUNT, i * 7 % 100 / 100, 0.1),
            image=pictures[i % 20],
            others=[(CLASSES[(i + 4) % 10], 0.1), (CLASSES[(i + 5) % 10], 0.05)],
            neighbours=[near[(i * k) % 200] for k in (1, 3, 7, 9)],
        )
        for i in range(COUNT)
    )
    write_report(path, summary, suspects)


def neighbour_seconds() -> float:
    """Of the processor, to find the neighbours of the suspects by embeddings."""
    features = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    start = time.process_time()
    nearest(features, np.arange(COUNT), 4, 0, torch.device("cpu"))
    return time.process_time() - start


if __name__ == "__main__":
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        write(path)
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        load = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        page.evaluate("document.getElementById('review').scrollIntoView()")
        times = {name: page.evaluate(TIME.replace("ACTION", action)) for name, action in ACTIONS.items()}
        empty = statistics.median(page.evaluate(TIME.replace("ACTION", "")))
        browser.close()
        found = {
            "suspects": COUNT,
            "file_megabytes": round(path.stat().st_size / 2**20, 1),
            "load_milliseconds": round(load),
            "two_frames_of_nothing_milliseconds": round(empty),
            **{f"{name}_milliseconds": round(statistics.median(values)) for name, values in times.items()},
            "neighbours_seconds": round(neighbour_seconds(), 1),
        }
        print(json.dumps(found))
