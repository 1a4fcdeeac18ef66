"""All tables and figures of the paper, by name."""

from vri.paper.pictures import pictures
from vri.paper.plan import Experiment
from vri.paper.tables import tables

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (*tables(), *pictures())}
