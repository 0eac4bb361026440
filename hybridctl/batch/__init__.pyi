from .simulate import Batch as Batch
