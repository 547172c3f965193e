from .build import PathBuilder as PathBuilder
from .build import failed as failed
from .build import path as path
from .build import succeeded as succeeded
from .compare import ConditionError as ConditionError
from .evaluate import Explanation as Explanation
from .model import Condition as Condition
from .model import condition_mistakes as condition_mistakes
