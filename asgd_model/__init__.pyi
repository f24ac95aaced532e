from . import accuracy as accuracy
from . import ordering as ordering
from . import plotting as plotting
from . import provisioning as provisioning
from . import queueing as queueing
from .cluster import Cluster as Cluster
from .cluster import Node as Node
from .errors import InputError as InputError
from .measurements import load_measurements as load_measurements
from .measurements import load_steps as load_steps
from .measurements import step_time_correlation as step_time_correlation
from .predict import METHODS as METHODS
from .predict import predict as predict
from .profile import Calibration as Calibration
from .profile import CommunicationCost as CommunicationCost
from .profile import Metadata as Metadata
from .profile import Profile as Profile
from .profile import load_profile as load_profile
from .profile import save_profile as save_profile
from .simulator import SimulationResult as SimulationResult
from .simulator import replicate as replicate
from .simulator import simulate as simulate
from .tensorflow_trace import read_run_metadata as read_run_metadata

__version__: str
