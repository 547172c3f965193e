from .model import Decompose as Decompose
from .splitters import ListSplit as ListSplit
from .splitters import TextSplit as TextSplit
from .splitters import concat as concat
from .splitters import join as join
from .splitters import split_list as split_list
from .splitters import split_text as split_text
