"""access: who may do what, and how much: listeners, logins, ACLs, users, delegation tokens and quotas."""
