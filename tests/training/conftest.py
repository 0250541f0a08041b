from tests.agent.conftest import one_thread as one_thread
