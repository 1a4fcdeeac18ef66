"""All tables and figures of the paper, by name."""

from vri.experiments.reproduce.pictures import pictures
from vri.experiments.reproduce.plan import Experiment
from vri.experiments.reproduce.tables import tables

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (*tables(), *pictures())}
