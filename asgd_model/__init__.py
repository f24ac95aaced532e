"""Predict the throughput of asynchronous SGD for any number of workers from one worker's profile.

Names are loaded when they are first used, so that importing the package stays fast; the file
``__init__.pyi`` lists them.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
