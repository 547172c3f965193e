from .promise import Expect as Expect
