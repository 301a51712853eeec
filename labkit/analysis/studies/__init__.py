"""What the pages of single studies say and show: modules named after their study, and what two of them share."""
