"""How hypothesis searches: the same cases every time, or (``--hypothesis-profile search``) new and many ones."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("steady")
