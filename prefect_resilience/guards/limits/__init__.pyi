from .adaptive import AdaptiveLimit as AdaptiveLimit
from .bulkhead import Bulkhead as Bulkhead
from .guarding import Limit as Limit
from .guarding import NamedLimit as NamedLimit
from .hedge import Hedge as Hedge
from .rate import RateLimit as RateLimit
