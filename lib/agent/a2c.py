"""The draw of actions under its former address."""

from lib.agent.actor_critic import sample_actions

__all__ = ["sample_actions"]
