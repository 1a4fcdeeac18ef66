"""How fast the review page of 5,000 suspects with pictures is: to load, and to react to a key.

python benchmarks/review_page.py       # needs pip install vri[dev], and Chromium (its path in CHROMIUM)
"""

import io
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from vri.cleaning.report import QUALITY_BINS, Summary, Suspect, write_report

COUNT, PETS = 5000, ["cat", "dog", "owl"]
PRESS = """async () => {
  const times = [];
  for (let i = 0; i < 50; i += 1) {
    const start = performance.now();
    document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'kad'[i % 3], bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def picture(seed: int) -> bytes:
    """About 3 kB, as a photo of 160 pixels has."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (54, 54, 3), dtype=np.uint8)).save(content, "JPEG")
    return content.getvalue()


def write(path: Path) -> None:
    pictures = [picture(seed) for seed in range(20)]
    summary = Summary(
        source="pets",
        classes=PETS,
        samples=10 * COUNT,
        trusted=0,
        issues=COUNT,
        noise_rate=0.1,
        noise_interval=(0.08, 0.12),
        transition_matrix=np.eye(3).tolist(),
        pair_counts=(np.ones((3, 3), int) - np.eye(3, dtype=int)).tolist(),
        quality_counts=[1] * QUALITY_BINS,
        threshold=0.5,
        accuracy_before=None,
        accuracy_after=None,
        accuracy_on="",
        version="",
        command="",
    )
    suspects = (
        Suspect(str(i), PETS[i % 3], PETS[(i + 1) % 3], i / COUNT, 0.9, 0.1, image=pictures[i % 20])
        for i in range(COUNT)
    )
    write_report(path, summary, suspects)


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
        times = page.evaluate(PRESS)
        browser.close()
        print(
            json.dumps(
                {
                    "suspects": COUNT,
                    "file_megabytes": round(path.stat().st_size / 2**20, 1),
                    "load_milliseconds": round(load),
                    "key_milliseconds": round(statistics.median(times)),
                }
            )
        )
