from .cluster import Cluster as Cluster
from .cluster import Node as Node
from .errors import InputError as InputError
from .profile import Profile as Profile
from .profile import load_profile as load_profile
from .profile import save_profile as save_profile

__version__: str
