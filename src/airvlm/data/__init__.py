"""The benchmarks' data: where they come from, how they get into the user's cache, and whether they are intact.

folder = find_data("pope")      # fetches the questions and the 500 images if they are not there yet
"""

from airvlm.data.catalog import DATA_SETS, DataSet, Need, find_need, list_tasks
from airvlm.data.download import DataDamaged, DataUnreachable, DiskFull
from airvlm.data.store import Status, fetch_data, find_data, get_data_folder, get_status, verify_data

__all__ = [
    "DATA_SETS",
    "DataDamaged",
    "DataSet",
    "DataUnreachable",
    "DiskFull",
    "Need",
    "Status",
    "fetch_data",
    "find_data",
    "find_need",
    "get_data_folder",
    "get_status",
    "list_tasks",
    "verify_data",
]
